//! What values a variable takes, and what NCCL makes of the others.

use serde::Deserialize;

/// Kinds of paths between devices, from the shortest to the longest, as NCCL writes them.
const LEVELS: [&str; 10] = ["LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS"];

/// The words of a switch.
const BOOLEANS: [&str; 6] = ["0", "1", "F", "T", "FALSE", "TRUE"];

/// How a value is read.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub(in crate::plan) enum Takes {
    /// A number, by `strtoll` with base 0.
    Integer {
        /// Those that are told apart; empty: all.
        #[serde(default)]
        counts: Vec<i64>,
        /// The least that counts.
        min: Option<i64>,
        /// The most that counts.
        max: Option<i64>,
    },
    /// One of a few words.
    Word {
        words: Vec<String>,
        /// Whether capitals matter.
        #[serde(default)]
        exact: bool,
    },
    /// Words behind each other, in any case; `^` before the first takes all others.
    List {
        words: Vec<String>,
        /// The functions that can have a list of their own: `allreduce:ring;broadcast:tree`.
        #[serde(default)]
        functions: Vec<String>,
        #[serde(default = "comma")]
        separator: char,
    },
    /// A kind of path, in capitals, or an old number for one.
    Level,
    /// On or off.
    Boolean,
    /// Any text.
    Text,
}

fn comma() -> char {
    ','
}

impl Takes {
    /// Any number.
    pub(super) fn integer() -> Self {
        Self::Integer { counts: Vec::new(), min: None, max: None }
    }

    /// Why NCCL does not read `value` as written, and what to write; `None`: it does. `otherwise`
    /// says what happens to a bad value, if it is not simply ignored.
    pub(super) fn objection(&self, value: &str, otherwise: Option<&str>) -> Option<String> {
        let ignores = otherwise.unwrap_or("ignores it");
        let write = match self {
            // An empty value is none.
            Self::Integer { .. } if value.is_empty() => return None,
            Self::Integer { counts, min, max } => {
                return integer_objection(value, counts, *min, *max);
            }
            Self::Word { words, exact: true } if !words.iter().any(|word| word == value) => {
                format!("{}, in capitals", listed(words))
            }
            Self::Word { words, exact: false } if !contains(words, value) => listed(words),
            Self::List { words, functions, separator } => {
                return list_objection(value, words, functions, *separator, ignores);
            }
            Self::Level if !is_level(value) => format!("{}, in capitals", listed(&LEVELS)),
            Self::Boolean if !contains(&BOOLEANS, value) => "0 or 1".to_owned(),
            Self::Word { .. } | Self::Level | Self::Boolean | Self::Text => return None,
        };
        Some(format!("NCCL {ignores}: write {write}"))
    }

    /// Whether `value` asks for `word`, alone or among others.
    pub(super) fn holds(&self, value: &str, word: &str) -> bool {
        let Self::List { separator, .. } = self else { return value.trim() == word };
        let lists = value.split(';').map(|list| list.split_once(':').map_or(list, |(_, it)| it));
        lists
            .filter(|list| !list.starts_with('^'))
            .any(|list| list.split(*separator).any(|element| element.eq_ignore_ascii_case(word)))
    }
}

fn integer_objection(
    value: &str,
    counts: &[i64],
    min: Option<i64>,
    max: Option<i64>,
) -> Option<String> {
    let write = match (counts, min, max) {
        ([], Some(min), Some(max)) => format!("a number from {min} to {max}"),
        ([], Some(min), None) => format!("a number, {min} or more"),
        ([], ..) => "a number".to_owned(),
        (counts, ..) => listed(&counts.iter().map(i64::to_string).collect::<Vec<_>>()),
    };
    let Some((number, rest)) = strtoll(value) else {
        return Some(format!("NCCL ignores it, as it is too large: write {write}"));
    };
    if !rest.is_empty() {
        return Some(format!("NCCL reads it as {number}: write {write}"));
    }
    let is_inside = min.is_none_or(|min| min <= number) && max.is_none_or(|max| number <= max);
    if is_inside && (counts.is_empty() || counts.contains(&number)) {
        return None;
    }
    Some(format!("NCCL has no meaning of its own for {number}: write {write}"))
}

/// The number at the beginning of a text and what follows it, as C's `strtoll` with base 0 reads
/// it: 0 if there is none. `None`: it does not fit.
fn strtoll(text: &str) -> Option<(i64, &str)> {
    let trimmed = text.trim_start_matches([' ', '\t', '\n', '\r', '\x0b', '\x0c']);
    let unsigned = trimmed.strip_prefix(['-', '+']).unwrap_or(trimmed);
    let is_hexadecimal = |rest: &&str| rest.starts_with(|c: char| c.is_ascii_hexdigit());
    let after_x = unsigned.strip_prefix("0x").or_else(|| unsigned.strip_prefix("0X"));
    let (radix, digits) = match after_x.filter(is_hexadecimal) {
        Some(digits) => (16, digits),
        None if unsigned.starts_with('0') => (8, unsigned),
        None => (10, unsigned),
    };
    let end = digits.find(|c: char| !c.is_digit(radix)).unwrap_or(digits.len());
    let (digits, rest) = digits.split_at(end);
    if digits.is_empty() {
        return Some((0, text));
    }
    let sign = if trimmed.starts_with('-') { "-" } else { "" };
    Some((i64::from_str_radix(&format!("{sign}{digits}"), radix).ok()?, rest))
}

fn is_level(value: &str) -> bool {
    // NCCL reads the digits of an old number, and takes all above 5 for 5.
    LEVELS.contains(&value) || value.starts_with(|c: char| c.is_ascii_digit())
}

fn list_objection(
    value: &str,
    words: &[String],
    functions: &[String],
    separator: char,
    otherwise: &str,
) -> Option<String> {
    let write = |of_functions: bool| {
        let separator = separator.to_string();
        let all = words.join(&separator);
        let negated = if separator == "," { ", all others with ^ before the first" } else { "" };
        let of_functions = if of_functions {
            format!("; a function's own behind its name, as {}:{}", functions[0], words[0])
        } else {
            String::new()
        };
        format!("write some of {all}{negated}{of_functions}")
    };
    let lists = if functions.is_empty() { vec![value] } else { value.split(';').collect() };
    for (place, list) in lists.into_iter().enumerate() {
        let (function, elements) = match list.split_once(':') {
            Some((function, elements)) if !functions.is_empty() => (Some(function), elements),
            _ => (None, list),
        };
        if function.is_none() && place > 0 {
            let why = "only the first list can be for all functions";
            return Some(format!("{why}, and NCCL {otherwise}: {}", write(true)));
        }
        if let Some(function) = function.filter(|function| !contains(functions, function)) {
            let all = functions.join(", ");
            return Some(format!("`{function}` is no function ({all}), and NCCL {otherwise}"));
        }
        let elements = elements.strip_prefix('^').unwrap_or(elements);
        let mut elements = elements.split(separator).filter(|element| !element.is_empty());
        if let Some(bad) = elements.find(|element| !contains(words, element)) {
            return Some(format!(
                "`{bad}` is none of its words, and NCCL {otherwise}: {}",
                write(false)
            ));
        }
    }
    None
}

fn contains(words: &[impl AsRef<str>], word: &str) -> bool {
    words.iter().any(|known| known.as_ref().eq_ignore_ascii_case(word))
}

/// `0`, `1` or `2`.
fn listed(words: &[impl AsRef<str>]) -> String {
    let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
    match words.as_slice() {
        [] => String::new(),
        [only] => (*only).to_owned(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}
