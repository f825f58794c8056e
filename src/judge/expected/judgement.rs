//! Compares a measured number with what is expected.

use serde::{Deserialize, Serialize};

use super::{Expected, rate};
use crate::units::{Bytes, microseconds_at};

/// A transfer is judged if its data takes this share of its time or more. Smaller transfers mostly
/// measure the start.
const DATA_SHARE_MIN: f64 = 0.75;

/// Whether a number is what it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// It is what a healthy machine reaches.
    Expected,
    /// It is less, or the machine has less than it should.
    Below,
    /// It is more than the way can carry.
    Above,
    /// Nobody can tell.
    Unknown,
}

/// A measured bandwidth, in GB/s.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    /// The median.
    pub gb_s: f64,
    /// Both ends of its interval; `None`: there are too few samples for one.
    pub interval: Option<(f64, f64)>,
    /// Data of one operation.
    pub size: Bytes,
    /// The measured rate divided by the rate at which the data is moved: 1 except for bus
    /// bandwidth.
    pub factor: f64,
}

/// A number compared with what is expected of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Judgement {
    /// What is expected.
    pub expected: Option<Expected>,
    /// The number divided by what is expected.
    pub fraction: Option<f64>,
    /// Whether it is as expected.
    pub verdict: Verdict,
    /// The reason, as a sentence.
    pub reason: String,
}

/// Compares a number, if there is one, with what is expected, or with the reason why nothing is.
pub fn judge(measured: Option<Measured>, expected: Result<Expected, String>) -> Judgement {
    let expected = match expected {
        Ok(expected) => expected,
        Err(reason) => {
            let verdict = Verdict::Unknown;
            return Judgement { expected: None, fraction: None, verdict, reason };
        }
    };
    let (verdict, reason) = match measured {
        Some(measured) => verdict(measured, &expected),
        None => (Verdict::Unknown, "no bandwidth was measured".to_owned()),
    };
    let fraction = measured.map(|measured| measured.gb_s / expected.gb_s);
    Judgement { expected: Some(expected), fraction, verdict, reason }
}

fn verdict(measured: Measured, expected: &Expected) -> (Verdict, String) {
    let data_us = microseconds_at(measured.size, expected.gb_s / measured.factor);
    let share = data_us / (data_us + expected.start_us);
    let (low, high) = (expected.low * share, expected.high);
    let hints = |reason: String| {
        let hints = expected.lacks.iter().chain(&expected.hints);
        std::iter::once(reason).chain(hints.cloned()).collect::<Vec<String>>().join("; ")
    };
    let Some((least, most)) = measured.interval else {
        return (Verdict::Unknown, hints("too few samples for an interval".to_owned()));
    };
    if least > high {
        if expected.may_be_cached {
            let reason = "faster than the GPU's memory: data of this size may have come from its \
                          cache; measure 256 MiB or more";
            return (Verdict::Unknown, reason.to_owned());
        }
        let reason = format!(
            "more than {} GB/s, which the way carries at most: it is not the way that it is taken \
             for",
            rate(high)
        );
        return (Verdict::Above, reason);
    }
    if share < DATA_SHARE_MIN {
        let reason = format!(
            "too small to tell: about {:.0} µs of its start are {:.0} % of its time, and from 25 % \
             on there is no verdict",
            expected.start_us,
            100.0 * (1.0 - share)
        );
        return (Verdict::Unknown, reason);
    }
    if most < low {
        let reason = format!("less than the {} GB/s that a healthy machine reaches", rate(low));
        return (Verdict::Below, hints(reason));
    }
    if measured.gb_s < low || measured.gb_s > high {
        let end = if measured.gb_s < low { low } else { high };
        let reason = format!(
            "the interval from {} to {} GB/s straddles {} GB/s, the end of what is expected: more \
             samples make it narrower",
            rate(least),
            rate(most),
            rate(end)
        );
        return (Verdict::Unknown, hints(reason));
    }
    if expected.lacks.is_empty() {
        let reason =
            format!("between {} and {} GB/s, as on a healthy machine", rate(low), rate(high));
        return (Verdict::Expected, reason);
    }
    let reason =
        "as fast as what is left allows, and less than this machine should have".to_owned();
    let lacks = expected.lacks.join("; ");
    (Verdict::Below, format!("{reason}: {lacks}"))
}
