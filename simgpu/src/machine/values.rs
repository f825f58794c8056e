//! The values of a machine file's keys: those that are allowed, and why another is not.

use serde::Deserialize;

/// A whole number within bounds.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(try_from = "i64")]
pub(super) struct Whole<const MIN: u64, const MAX: u64>(u64);

impl<const MIN: u64, const MAX: u64> Whole<MIN, MAX> {
    pub(super) fn get(self) -> u64 {
        self.0
    }

    /// For bounds below 2^32.
    pub(super) fn get_u32(self) -> u32 {
        u32::try_from(self.0).unwrap_or(u32::MAX)
    }
}

impl<const MIN: u64, const MAX: u64> TryFrom<i64> for Whole<MIN, MAX> {
    type Error = String;

    fn try_from(number: i64) -> Result<Self, String> {
        let within = u64::try_from(number).ok().filter(|number| (MIN..=MAX).contains(number));
        within.map(Self).ok_or_else(|| match MIN == MAX {
            true => format!("{number} is not {MIN}, the only value there is"),
            false => format!("{number} is not between {MIN} and {MAX}"),
        })
    }
}

/// A whole number that is not negative.
pub(super) type Count = Whole<0, { i64::MAX as u64 }>;

/// Declares a type for numbers of which not all are allowed.
macro_rules! number {
    ($(#[$doc:meta])* $name:ident, $allowed:expr, $rule:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Deserialize)]
        #[serde(try_from = "f64")]
        pub(super) struct $name(f64);

        impl $name {
            pub(super) fn get(self) -> f64 {
                self.0
            }
        }

        impl TryFrom<f64> for $name {
            type Error = String;

            fn try_from(number: f64) -> Result<Self, String> {
                let allowed: fn(f64) -> bool = $allowed;
                if allowed(number) { Ok(Self(number)) } else { Err(format!("{number} {}", $rule)) }
            }
        }
    };
}

number!(
    /// GB/s.
    Speed,
    |number| number > 0.0 && number.is_finite(),
    "is not a rate, which is above 0 and finite"
);
number!(
    /// Nanoseconds.
    Latency,
    |number| (0.0..=1e12).contains(&number),
    "is not a latency, which is between 0 and 1e12 nanoseconds"
);
number!(
    /// GB/s of all that shares a port; `inf` for none.
    Limit,
    |number| number > 0.0,
    "is not a limit, which is above 0, or `inf` for none"
);
number!(
    /// How many of all.
    Share,
    |number| (0.0..=1.0).contains(&number),
    "is not a share, which is between 0 and 1"
);
number!(
    /// What is left of a speed.
    Fraction,
    |number| number > 0.0 && number <= 1.0,
    "is not a fraction of a speed, which is above 0 and at most 1"
);

/// `DDDD:BB:DD`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct PciAddress(pub (u32, u32, u32));

impl TryFrom<String> for PciAddress {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let parts: Vec<&str> = text.split(':').collect();
        let number = |at: usize, digits: usize| {
            let part = parts.get(at).filter(|part| part.len() == digits)?;
            u32::from_str_radix(part, 16).ok()
        };
        match (number(0, 4), number(1, 2), number(2, 2)) {
            (Some(domain), Some(bus), Some(device)) if device < 32 && parts.len() == 3 => {
                Ok(Self((domain, bus, device)))
            }
            _ => Err(format!("`{text}` is not a PCI address such as `0000:1a:00`")),
        }
    }
}

/// The version of what is installed; `None`: it is not.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct Installed(pub Option<String>);

impl TryFrom<String> for Installed {
    type Error = String;

    fn try_from(version: String) -> Result<Self, String> {
        let is_part = |part: &str| !part.is_empty() && part.bytes().all(|it| it.is_ascii_digit());
        match version.as_str() {
            "none" => Ok(Self(None)),
            _ if version.split('.').all(is_part) => Ok(Self(Some(version))),
            _ => Err(format!("`{version}` is no version such as `2.1.0`, and not `none`")),
        }
    }
}

/// A path from the root, without detours.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct AbsolutePath(pub String);

impl TryFrom<String> for AbsolutePath {
    type Error = String;

    fn try_from(path: String) -> Result<Self, String> {
        let is_name = |part: &str| !["", ".", ".."].contains(&part);
        match path.strip_prefix('/').is_some_and(|parts| parts.split('/').all(is_name)) {
            true => Ok(Self(path)),
            false => Err(format!("`{path}` is no path such as `/proc/cmdline`, from the root")),
        }
    }
}

/// Five groups of hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct Uuid(pub [u8; 16]);

impl TryFrom<String> for Uuid {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let refusal =
            || format!("`{text}` is not a UUID such as `8f0c1a52-0000-4000-8000-000000000001`");
        let groups: Vec<usize> = text.split('-').map(str::len).collect();
        let digits: String = text.split('-').collect();
        let is_hex = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        if groups != [8, 4, 4, 4, 12] || !is_hex {
            return Err(refusal());
        }
        u128::from_str_radix(&digits, 16)
            .map(|uuid| Self(uuid.to_be_bytes()))
            .map_err(|_| refusal())
    }
}

/// Bits of a counter.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(try_from = "i64")]
pub(super) struct Bits(pub(super) u32);

impl Bits {
    /// 0: there is no counter.
    pub(super) const fn get_u32(self) -> u32 {
        self.0
    }
}

impl TryFrom<i64> for Bits {
    type Error = String;

    fn try_from(number: i64) -> Result<Self, String> {
        match number {
            0 => Ok(Self(0)),
            32 => Ok(Self(32)),
            64 => Ok(Self(64)),
            _ => Err(format!("{number} is not 0 (no counter), 32 or 64")),
        }
    }
}

/// The name of a call, without a version suffix.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct CallName(pub String);

impl TryFrom<String> for CallName {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        if !["cu", "nvml", "nccl"].iter().any(|prefix| name.starts_with(prefix)) {
            return Err(format!("`{name}` is not a call of the driver, of NVML or of NCCL"));
        }
        match name.rsplit_once("_v") {
            Some((base, version)) if version.bytes().all(|digit| digit.is_ascii_digit()) => {
                Err(format!("calls have no version suffix here: write `{base}`"))
            }
            _ => Ok(Self(name)),
        }
    }
}
