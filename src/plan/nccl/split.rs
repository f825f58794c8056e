//! Dividing the ranks into several communicators, in the words of nccl-tests.

use std::{collections::BTreeMap, fmt, num::NonZeroU32, str::FromStr};

use serde::{Deserialize, Serialize};

/// Which ranks are in a communicator together: those whose numbers give the same color
/// (`NCCL_TESTS_SPLIT` in nccl-tests' README).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Split {
    /// The bits that a number and this one have in common.
    And(u32),
    /// The bits that either has.
    Or(u32),
    /// What is left of a number divided by this one.
    Mod(NonZeroU32),
    /// How often this one is in a number.
    Div(NonZeroU32),
}

impl Split {
    /// The numbers of the ranks of each communicator, of `ranks` in all; both in ascending order,
    /// of the colors and of the numbers.
    pub fn parts(self, ranks: u32) -> Vec<Vec<u32>> {
        let mut parts: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for number in 0..ranks {
            parts.entry(self.color(number)).or_default().push(number);
        }
        parts.into_values().collect()
    }

    /// What the rank with this `number` has in common with those of its communicator.
    pub fn color(self, number: u32) -> u32 {
        match self {
            Self::And(mask) => number & mask,
            Self::Or(mask) => number | mask,
            Self::Mod(by) => number % by,
            Self::Div(by) => number / by,
        }
    }
}

impl fmt::Display for Split {
    /// `MOD:2`, `AND:0x7`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::And(mask) => write!(f, "AND:{mask:#x}"),
            Self::Or(mask) => write!(f, "OR:{mask:#x}"),
            Self::Mod(by) => write!(f, "MOD:{by}"),
            Self::Div(by) => write!(f, "DIV:{by}"),
        }
    }
}

impl FromStr for Split {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let upper = text.trim().to_ascii_uppercase();
        let behind = |words: [&str; 2]| {
            let rest = words.into_iter().find_map(|word| upper.strip_prefix(word))?;
            number(rest.strip_prefix(':').unwrap_or(rest).trim())
        };
        let by = |number: Option<u32>| number.and_then(NonZeroU32::new);
        let split = behind(["AND", "&"])
            .map(Self::And)
            .or_else(|| behind(["OR", "|"]).map(Self::Or))
            .or_else(|| by(behind(["MOD", "%"])).map(Self::Mod))
            .or_else(|| by(behind(["DIV", "/"])).map(Self::Div))
            .or_else(|| mask(&upper).map(Self::And));
        split.ok_or_else(|| {
            format!(
                "`{text}` does not divide ranks: write AND:N, OR:N, MOD:N or DIV:N, or a mask such \
                 as 0x7, which is AND:0x7; a number may begin with 0x or 0b, and to divide by it \
                 is above 0"
            )
        })
    }
}

/// A mask by itself. One of several digits says its base: nccl-tests takes it for hexadecimal
/// (`NCCL_TESTS_SPLIT_MASK`), which a reader may not.
fn mask(text: &str) -> Option<u32> {
    number(text).filter(|_| text.len() == 1 || text.starts_with("0X") || text.starts_with("0B"))
}

fn number(text: &str) -> Option<u32> {
    let digits = |digits: &str, base| {
        let is_plain = digits.starts_with(|digit: char| digit.is_ascii_hexdigit());
        u32::from_str_radix(digits, base).ok().filter(|_| is_plain)
    };
    match (text.strip_prefix("0X"), text.strip_prefix("0B")) {
        (Some(text), _) => digits(text, 16),
        (_, Some(text)) => digits(text, 2),
        _ => digits(text, 10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_nccl_tests_are_read() {
        for (text, expected) in [
            ("AND 0x7", "AND:0x7"),
            ("&0b11", "AND:0x3"),
            ("or:7", "OR:0x7"),
            ("|8", "OR:0x8"),
            ("MOD2", "MOD:2"),
            ("% 0x10", "MOD:16"),
            ("div 8", "DIV:8"),
            ("/8", "DIV:8"),
            ("0x1F", "AND:0x1f"),
            ("7", "AND:0x7"),
        ] {
            let split: Split = text.parse().unwrap();
            assert_eq!(split.to_string(), expected, "{text}");
            assert_eq!(expected.parse(), Ok(split), "{text}");
        }
        for text in
            ["", "10", "MOD 0", "DIV:", "XOR 1", "MOD -1", "AND 0x", "AND:+1", "%9999999999"]
        {
            assert!(text.parse::<Split>().is_err(), "{text}");
        }
    }

    #[test]
    fn ranks_of_one_color_are_together() {
        let parts = |text: &str| text.parse::<Split>().unwrap().parts(4);
        assert_eq!(parts("MOD 2"), [[0, 2], [1, 3]]);
        assert_eq!(parts("AND 0x1"), [[0, 2], [1, 3]]);
        assert_eq!(parts("DIV 2"), [[0, 1], [2, 3]]);
        assert_eq!(parts("OR 0x1"), [[0, 1], [2, 3]]);
        assert_eq!(parts("AND 0"), [[0, 1, 2, 3]]);
        assert_eq!(parts("MOD 3"), [vec![0, 3], vec![1], vec![2]]);
    }
}
