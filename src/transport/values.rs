//! What ranks give to a reduction, and what must come out of it.
//!
//! A reduction's result may depend on the order in which it is made, which is NCCL's own affair.
//! So ranks give numbers of which every sum and product on the way is exact in their type: whole
//! ones, small enough, or powers of two; where a type is too small for all ranks, some of them,
//! others for each element, give 1 (to a product) or 0. Then one value is right, in every bit. One
//! case is left: NCCL averages floats by multiplying with the rounded 1/n, so that where n is no
//! power of two the result may be two steps of the type beside the quotient.
//!
//! `kernels/values.cu` has the same for GPUs.

use super::pattern::word;
use crate::{
    ffi::cuda::Reduced,
    plan::{DataType, Reduction},
};

/// How the numbers of a type are made.
#[derive(Clone, Copy, Debug)]
struct Kind {
    /// `None`: whole numbers.
    float: Option<Float>,
    /// All whole numbers up to 2 to the power of this are exact.
    exact: u32,
    /// So often 1 can be doubled.
    doublings: u32,
    is_signed: bool,
}

/// A binary floating-point format.
#[derive(Clone, Copy, Debug)]
struct Float {
    /// Bits of the significand that are stored: without the leading 1.
    significand: u32,
    /// The exponent's bias.
    bias: u64,
}

impl Float {
    const fn new(significand: u32, bias: u64) -> Option<Self> {
        Some(Self { significand, bias })
    }
}

const fn kind(data_type: DataType) -> Kind {
    let (float, exact, doublings, is_signed) = match data_type {
        DataType::Int8 => (None, 6, 6, true),
        DataType::Uint8 => (None, 7, 7, false),
        DataType::Int32 => (None, 30, 30, true),
        DataType::Uint32 => (None, 31, 31, false),
        DataType::Int64 => (None, 48, 62, true),
        DataType::Uint64 => (None, 48, 62, false),
        DataType::Half => (Float::new(10, 15), 11, 15, true),
        DataType::Float => (Float::new(23, 127), 24, 60, true),
        DataType::Double => (Float::new(52, 1023), 48, 60, true),
        DataType::Bfloat16 => (Float::new(7, 127), 8, 60, true),
        DataType::F8e4m3 => (Float::new(3, 7), 4, 8, true),
        DataType::F8e5m2 => (Float::new(2, 15), 3, 15, true),
    };
    Kind { float, exact, doublings, is_signed }
}

/// One reduction of elements of one type among some ranks.
#[derive(Clone, Copy, Debug)]
pub struct Values {
    data_type: DataType,
    reduction: Reduction,
    ranks: u32,
    kind: Kind,
    /// Ranks, from a first one on, that do not give the neutral number.
    active: u32,
    /// Bits of a number.
    bits: u32,
}

impl Values {
    /// Most ranks among whom 8-bit floats can be averaged: what one gives is 256 at most.
    pub const RANKS_MAX: u32 = 511;

    /// Among `ranks`, from 1 to [`Values::RANKS_MAX`].
    pub fn new(data_type: DataType, reduction: Reduction, ranks: u32) -> Self {
        let kind = kind(data_type);
        let most = 1_u64 << kind.exact;
        // A factor of two is in the sum of products.
        let room = if reduction == Reduction::MulSum { most / 2 } else { most };
        let active = match reduction {
            Reduction::Avg if kind.float.is_some() => 1,
            Reduction::Prod => ranks.min(kind.doublings),
            Reduction::Max | Reduction::Min => ranks,
            _ => ranks.min(u32::try_from(room).unwrap_or(u32::MAX)),
        };
        let bits = match reduction {
            Reduction::Avg if kind.float.is_some() => 1,
            Reduction::Prod => 1,
            Reduction::Max | Reduction::Min => kind.exact,
            // So that `active` of them, each perhaps doubled, stay below `most`.
            _ => room.ilog2().saturating_sub(active.next_power_of_two().ilog2()).max(1),
        };
        Self { data_type, reduction, ranks, kind, active, bits }
    }

    /// The same for kernels, in the data of `seed`.
    pub fn reduced(&self, seed: u64) -> Reduced {
        Reduced {
            seed,
            data_type: self.data_type as u32,
            element: self.data_type.size().get(),
            reduction: self.reduction as u32,
            ranks: self.ranks,
            tolerance: self.tolerance(),
        }
    }

    /// What element `index` of `rank` is, in the data of `seed`: the bits of its type.
    pub fn given(&self, seed: u64, index: u64, rank: u32) -> u64 {
        let random = word(seed, index);
        let place = (rank + self.ranks - self.first(random)) % self.ranks;
        let is_active = place < self.active;
        self.encode(if is_active { self.number(random, rank) } else { self.neutral() })
    }

    /// What element `index` must become: the bits of its type.
    pub fn result(&self, seed: u64, index: u64) -> u64 {
        let random = word(seed, index);
        let first = self.first(random);
        let ranks = (first..first + self.active).map(|rank| rank % self.ranks);
        let numbers = ranks.map(|rank| (rank, self.number(random, rank)));
        let all: i64 = match self.reduction {
            Reduction::Prod => numbers.map(|(_, number)| number).product(),
            Reduction::Max => numbers.map(|(_, number)| number).max().unwrap_or(0),
            Reduction::Min => numbers.map(|(_, number)| number).min().unwrap_or(0),
            Reduction::MulSum => {
                numbers.map(|(rank, number)| number * i64::from(Self::factor(rank))).sum()
            }
            Reduction::Sum | Reduction::Avg => numbers.map(|(_, number)| number).sum(),
        };
        match (self.reduction, self.kind.float) {
            (Reduction::Avg, None) => self.encode(all / i64::from(self.ranks)),
            (Reduction::Avg, Some(float)) => {
                self.encode_float(float, all as f64 / f64::from(self.ranks))
            }
            _ => self.encode(all),
        }
    }

    /// How far the bits of a right element may be from those of [`Values::result`].
    pub fn tolerance(&self) -> u32 {
        let divides = self.reduction == Reduction::Avg && self.kind.float.is_some();
        if divides && !self.ranks.is_power_of_two() { 2 } else { 0 }
    }

    /// What `rank` multiplies its elements with in [`Reduction::MulSum`].
    pub const fn factor(rank: u32) -> u32 {
        1 + rank % 2
    }

    /// The bits of a small whole number, such as [`Values::factor`].
    pub fn encode(&self, value: i64) -> u64 {
        match self.kind.float {
            None => value.cast_unsigned() & (u64::MAX >> (64 - 8 * self.data_type.size().get())),
            Some(float) => self.encode_float(float, value as f64),
        }
    }

    /// The first of the active ranks.
    fn first(&self, random: u64) -> u32 {
        u32::try_from((random >> 48) % u64::from(self.ranks)).unwrap_or(0)
    }

    /// What `rank`, which is active, gives, where `random` is the element's word.
    fn number(&self, random: u64, rank: u32) -> i64 {
        let own = random.wrapping_mul(2 * u64::from(rank) + 1) >> 16;
        let low = own & ((1 << self.bits) - 1);
        match self.reduction {
            Reduction::Prod => 1 << low,
            Reduction::Avg if self.kind.float.is_some() => {
                let log = self.ranks.ilog2();
                1 << (u64::from(log) + if log < 8 { low } else { 0 })
            }
            Reduction::Max | Reduction::Min if self.kind.is_signed && own >> 47 & 1 != 0 => {
                -low.cast_signed()
            }
            _ => low.cast_signed(),
        }
    }

    fn neutral(&self) -> i64 {
        i64::from(self.reduction == Reduction::Prod)
    }

    /// The bits of the nearest float; of two the even one. None of the values is subnormal.
    fn encode_float(&self, Float { significand, bias }: Float, value: f64) -> u64 {
        if value == 0.0 {
            return 0;
        }
        let lost = 52 - significand;
        let mut magnitude = value.abs().to_bits() - ((1023 - bias) << 52);
        if lost > 0 {
            magnitude += (1 << (lost - 1)) - 1 + (magnitude >> lost & 1);
            magnitude >>= lost;
        }
        let sign = u64::from(value.is_sign_negative());
        magnitude | sign << (8 * self.data_type.size().get() - 1)
    }
}

#[cfg(test)]
mod tests {
    use strum::VariantArray as _;

    use super::*;

    /// The number that bits of a type stand for, by the formula of the formats.
    fn decode(data_type: DataType, bits: u64) -> f64 {
        let size = 8 * i32::try_from(data_type.size().get()).unwrap();
        match kind(data_type).float {
            None if kind(data_type).is_signed => {
                (bits << (64 - size)).cast_signed() as f64 / 2_f64.powi(64 - size)
            }
            None => bits as f64,
            Some(Float { significand, bias }) => {
                let significand = significand.cast_signed();
                let sign = if bits >> (size - 1) == 1 { -1.0 } else { 1.0 };
                let exponent = bits >> significand & ((1 << (size - 1 - significand)) - 1);
                if bits == 0 {
                    return 0.0;
                }
                let fraction = (bits & ((1 << significand) - 1)) as f64;
                let fraction = 1.0 + fraction / 2_f64.powi(significand);
                let exponent = exponent.cast_signed() - bias.cast_signed();
                sign * fraction * 2_f64.powi(i32::try_from(exponent).unwrap())
            }
        }
    }

    /// Whether bits of a type stand for exactly this number.
    fn is_exact(values: &Values, number: f64) -> bool {
        #[allow(clippy::cast_possible_truncation, reason = "what is lost would be seen")]
        let bits = match values.kind.float {
            Some(float) => values.encode_float(float, number),
            None => values.encode(number as i64),
        };
        decode(values.data_type, bits) == number
    }

    fn every_case(mut look: impl FnMut(Values)) {
        for &data_type in DataType::VARIANTS {
            for &reduction in Reduction::VARIANTS {
                for ranks in [1, 2, 3, 4, 5, 7, 8, 9, 16, 72, 200, Values::RANKS_MAX] {
                    look(Values::new(data_type, reduction, ranks));
                }
            }
        }
    }

    #[test]
    fn in_any_order_every_step_is_exact_and_leads_to_the_result() {
        every_case(|values| {
            for index in 0..40 {
                let mut numbers: Vec<f64> = (0..values.ranks)
                    .map(|rank| {
                        let number = decode(values.data_type, values.given(7, index, rank));
                        match values.reduction {
                            Reduction::MulSum => number * f64::from(Values::factor(rank)),
                            _ => number,
                        }
                    })
                    .collect();
                for turn in 0..3 {
                    let middle = numbers.len() / 2;
                    match turn {
                        0 => {}
                        1 => numbers.reverse(),
                        _ => numbers.rotate_left(middle),
                    }
                    let step = |all: f64, number: f64| {
                        let all = match values.reduction {
                            Reduction::Prod => all * number,
                            Reduction::Max => all.max(number),
                            Reduction::Min => all.min(number),
                            _ => all + number,
                        };
                        assert!(is_exact(&values, all), "{values:?} {index}: {all}");
                        all
                    };
                    let all = numbers.iter().copied().reduce(step).unwrap();
                    let ranks = f64::from(values.ranks);
                    let expected = match (values.reduction, values.kind.float) {
                        (Reduction::Avg, None) => (all / ranks).trunc(),
                        (Reduction::Avg, Some(_)) => all / ranks,
                        _ => all,
                    };
                    let found = decode(values.data_type, values.result(7, index));
                    let near = values.kind.float.filter(|_| values.tolerance() > 0);
                    let off = near.map_or(0.0, |float| {
                        expected.abs() / 2_f64.powi(float.significand.cast_signed() + 1)
                    });
                    assert!((found - expected).abs() <= off, "{values:?}: {found} {expected}");
                }
            }
        });
    }

    #[test]
    fn a_rank_that_is_left_out_or_counted_twice_is_seen() {
        every_case(|values| {
            // Of a maximum, most ranks decide nothing; and one rank alone cannot be missed.
            let decides = !matches!(values.reduction, Reduction::Max | Reduction::Min);
            if !decides || values.ranks < 2 {
                return;
            }
            for rank in 0..values.ranks.min(8) {
                let matters = |index: &u64| {
                    let own = decode(values.data_type, values.given(3, *index, rank));
                    own != values.neutral() as f64
                };
                assert!((0..20_000).any(|index| matters(&index)), "{values:?} {rank}");
            }
        });
    }

    #[test]
    fn numbers_differ_from_element_to_element_and_from_rank_to_rank() {
        let values = Values::new(DataType::Float, Reduction::Sum, 8);
        let row = |rank| (0..64).map(|index| values.given(1, index, rank)).collect::<Vec<u64>>();
        let rows: Vec<Vec<u64>> = (0..8).map(row).collect();
        for (rank, row) in rows.iter().enumerate() {
            assert!(rows[..rank].iter().all(|other| other != row));
            assert!(row.windows(2).filter(|pair| pair[0] == pair[1]).count() < 3);
        }
        assert_ne!(values.result(1, 0), values.result(2, 0));
    }

    #[test]
    fn bits_are_those_of_the_formats() {
        let of = |data_type| Values::new(data_type, Reduction::Sum, 2);
        for (data_type, bits) in [
            (DataType::Int8, 0xfd),
            (DataType::Int64, 0xffff_ffff_ffff_fffd),
            (DataType::Half, 0xc200),
            (DataType::Float, u64::from((-3.0_f32).to_bits())),
            (DataType::Double, (-3.0_f64).to_bits()),
            (DataType::Bfloat16, 0xc040),
            (DataType::F8e4m3, 0xc4),
            (DataType::F8e5m2, 0xc2),
        ] {
            assert_eq!(of(data_type).encode(-3), bits, "{data_type:?}");
        }
        assert_eq!(of(DataType::F8e4m3).encode(256), 0x78);
    }
}
