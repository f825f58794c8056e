//! Reducing elements: every data type and operation. Pure.
//!
//! Floats of 8 and 16 bits are reckoned with in 32 bits and rounded, to the nearest and ties to
//! even, after every step.

use half::{bf16, f16};

use super::types::{DataType, Operation};

/// Elements that are reduced before the next are begun: few enough to stay in the nearest cache.
const BLOCK: usize = 2048;

/// An element of `SIZE` bytes that can be reduced.
trait Element<const SIZE: usize>: Copy {
    fn load(bytes: [u8; SIZE]) -> Self;
    fn store(self) -> [u8; SIZE];
    fn sum(self, other: Self) -> Self;
    fn product(self, other: Self) -> Self;
    fn largest(self, other: Self) -> Self;
    fn smallest(self, other: Self) -> Self;
    /// Before a mean's sum, and after it: floats are multiplied first, integers divided last.
    fn before_mean(self, count: u64) -> Self;
    fn after_mean(self, count: u64) -> Self;
}

macro_rules! integers {
    ($($type:ty),*) => {$(
        impl Element<{ size_of::<$type>() }> for $type {
            fn load(bytes: [u8; size_of::<$type>()]) -> Self {
                Self::from_ne_bytes(bytes)
            }

            fn store(self) -> [u8; size_of::<$type>()] {
                self.to_ne_bytes()
            }

            fn sum(self, other: Self) -> Self {
                self.wrapping_add(other)
            }

            fn product(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }

            fn largest(self, other: Self) -> Self {
                self.max(other)
            }

            fn smallest(self, other: Self) -> Self {
                self.min(other)
            }

            fn before_mean(self, _: u64) -> Self {
                self
            }

            fn after_mean(self, count: u64) -> Self {
                // A communicator has at most 64 ranks, which every type can hold.
                Self::try_from(count).map_or(self, |count| self / count)
            }
        }
    )*};
}
integers!(i8, u8, i32, u32, i64, u64);

macro_rules! floats {
    ($($type:ty, $bits:ty, $wide:ty, $widen:expr, $narrow:expr;)*) => {$(
        impl Element<{ size_of::<$type>() }> for $type {
            fn load(bytes: [u8; size_of::<$type>()]) -> Self {
                Self::from_bits(<$bits>::from_ne_bytes(bytes))
            }

            fn store(self) -> [u8; size_of::<$type>()] {
                self.to_bits().to_ne_bytes()
            }

            fn sum(self, other: Self) -> Self {
                $narrow($widen(self) + $widen(other))
            }

            fn product(self, other: Self) -> Self {
                $narrow($widen(self) * $widen(other))
            }

            fn largest(self, other: Self) -> Self {
                $narrow($widen(self).max($widen(other)))
            }

            fn smallest(self, other: Self) -> Self {
                $narrow($widen(self).min($widen(other)))
            }

            fn before_mean(self, count: u64) -> Self {
                self.product($narrow((1.0 / count as f64) as $wide))
            }

            fn after_mean(self, _: u64) -> Self {
                self
            }
        }
    )*};
}
floats! {
    f64, u64, f64, std::convert::identity, std::convert::identity;
    f32, u32, f32, std::convert::identity, std::convert::identity;
    f16, u16, f32, f16::to_f32, f16::from_f32;
    bf16, u16, f32, bf16::to_f32, bf16::from_f32;
    E4m3, u8, f32, E4m3::to_f32, E4m3::from_f32;
    E5m2, u8, f32, E5m2::to_f32, E5m2::from_f32;
}

/// A float of 8 bits: what tells the two formats of them apart.
#[derive(Clone, Copy)]
struct Format {
    mantissa_bits: u32,
    bias: i32,
    /// The largest finite value, which larger ones become, as NVIDIA's conversions saturate.
    largest: u8,
    nan: u8,
}

/// Four bits of exponent, no infinity (Micikevicius and others, "FP8 formats for deep learning").
const E4M3: Format = Format { mantissa_bits: 3, bias: 7, largest: 0x7E, nan: 0x7F };
/// Five bits of exponent.
const E5M2: Format = Format { mantissa_bits: 2, bias: 15, largest: 0x7B, nan: 0x7F };

impl Format {
    fn widen(self, bits: u8) -> f32 {
        let sign = if bits & 0x80 == 0 { 1.0 } else { -1.0 };
        let magnitude = bits & 0x7F;
        if magnitude > self.largest {
            let infinite = self.mantissa_bits == 2 && magnitude == 0x7C;
            return if infinite { sign * f32::INFINITY } else { f32::NAN };
        }
        let exponent = i32::from(magnitude >> self.mantissa_bits);
        let mantissa = f32::from(magnitude & ((1 << self.mantissa_bits) - 1));
        let steps = f32::from(1_u8 << self.mantissa_bits);
        let (whole, exponent) = if exponent == 0 { (0.0, 1) } else { (1.0, exponent) };
        sign * (whole + mantissa / steps) * 2_f32.powi(exponent - self.bias)
    }

    fn narrow(self, value: f32) -> u8 {
        let sign = if value.is_sign_negative() { 0x80 } else { 0 };
        if value.is_nan() {
            return sign | self.nan;
        }
        let value = value.abs();
        // Magnitudes grow with their bits: the last one that is not larger, and the one behind it.
        let (mut low, mut end) = (0, self.largest + 1);
        while end - low > 1 {
            let middle = low + (end - low) / 2;
            if self.widen(middle) <= value { low = middle } else { end = middle }
        }
        if low == self.largest {
            return sign | low;
        }
        let (below, above) = (value - self.widen(low), self.widen(low + 1) - value);
        let up = above < below || (above == below && low % 2 == 1);
        sign | (low + u8::from(up))
    }
}

macro_rules! eight_bits {
    ($($name:ident, $format:ident;)*) => {$(
        #[derive(Clone, Copy)]
        struct $name(u8);

        impl $name {
            fn from_bits(bits: u8) -> Self {
                Self(bits)
            }

            fn to_bits(self) -> u8 {
                self.0
            }

            fn to_f32(self) -> f32 {
                $format.widen(self.0)
            }

            fn from_f32(value: f32) -> Self {
                Self($format.narrow(value))
            }
        }
    )*};
}
eight_bits! {
    E4m3, E4M3;
    E5m2, E5M2;
}

/// Reduces what ranks have, in the order given, each `target.len()` bytes, with the bits of the
/// factor of each.
pub(crate) fn reduce(
    data_type: DataType,
    operation: Operation,
    inputs: &[(&[u8], u64)],
    target: &mut [u8],
) {
    let reduce = match data_type {
        DataType::Int8 => reduce_as::<1, i8>,
        DataType::Uint8 => reduce_as::<1, u8>,
        DataType::Int32 => reduce_as::<4, i32>,
        DataType::Uint32 => reduce_as::<4, u32>,
        DataType::Int64 => reduce_as::<8, i64>,
        DataType::Uint64 => reduce_as::<8, u64>,
        DataType::Float16 => reduce_as::<2, f16>,
        DataType::Float32 => reduce_as::<4, f32>,
        DataType::Float64 => reduce_as::<8, f64>,
        DataType::Bfloat16 => reduce_as::<2, bf16>,
        DataType::Float8e4m3 => reduce_as::<1, E4m3>,
        DataType::Float8e5m2 => reduce_as::<1, E5m2>,
    };
    reduce(operation, inputs, target);
}

fn reduce_as<const SIZE: usize, T: Element<SIZE>>(
    operation: Operation,
    inputs: &[(&[u8], u64)],
    target: &mut [u8],
) {
    let count = inputs.len() as u64;
    let keep = |x: T, _: T| x;
    match operation {
        Operation::Sum => fold(inputs, target, keep, T::sum, |x| x),
        Operation::Prod => fold(inputs, target, keep, T::product, |x| x),
        Operation::Max => fold(inputs, target, keep, T::largest, |x| x),
        Operation::Min => fold(inputs, target, keep, T::smallest, |x| x),
        Operation::Avg => {
            let before = |x: T, _: T| x.before_mean(count);
            fold(inputs, target, before, T::sum, |x| x.after_mean(count));
        }
        Operation::PreMulSum => fold(inputs, target, T::product, T::sum, |x| x),
    }
}

fn fold<const SIZE: usize, T: Element<SIZE>>(
    inputs: &[(&[u8], u64)],
    target: &mut [u8],
    before: impl Fn(T, T) -> T,
    step: impl Fn(T, T) -> T,
    after: impl Fn(T) -> T,
) {
    let (target, _) = target.as_chunks_mut::<SIZE>();
    for (block, target) in target.chunks_mut(BLOCK).enumerate() {
        let place = block * BLOCK..block * BLOCK + target.len();
        // Input by input, not element by element: the compiler makes vectors of the inner loop.
        for (number, (input, factor)) in inputs.iter().enumerate() {
            let mut own = [0; SIZE];
            own.copy_from_slice(&factor.to_ne_bytes()[..SIZE]);
            let factor = T::load(own);
            for (target, &element) in target.iter_mut().zip(&input.as_chunks().0[place.clone()]) {
                let element = before(T::load(element), factor);
                let reduced = if number == 0 { element } else { step(T::load(*target), element) };
                *target = reduced.store();
            }
        }
        target.iter_mut().for_each(|target| *target = after(T::load(*target)).store());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_bits_are_those_of_the_two_formats() {
        assert_eq!(E4M3.widen(0x7E), 448.0);
        assert_eq!(E5M2.widen(0x7B), 57344.0);
        assert_eq!(E4M3.widen(0x01), 2_f32.powi(-9));
        assert_eq!(E5M2.widen(0x01), 2_f32.powi(-16));
        assert!(E4M3.widen(0x7F).is_nan() && E5M2.widen(0x7C).is_infinite());
        for (format, finite) in [(E4M3, 0x7F_u8), (E5M2, 0x7C)] {
            for bits in (0..finite).chain(0x80..0x80 + finite) {
                assert_eq!(format.narrow(format.widen(bits)), bits, "{bits:x}");
            }
            // Half way between two: to the even one.
            for low in 0..format.largest {
                let middle = f32::midpoint(format.widen(low), format.widen(low + 1));
                assert_eq!(format.narrow(middle), low + low % 2, "{low:x}");
            }
            assert_eq!(format.narrow(1e9), format.largest);
            assert_eq!(format.narrow(f32::NEG_INFINITY), format.largest | 0x80);
        }
    }

    /// What `inputs` are reduced to, with no factors.
    fn reduced<const BYTES: usize>(
        data_type: DataType,
        operation: Operation,
        inputs: &[[u8; BYTES]],
    ) -> [u8; BYTES] {
        let inputs: Vec<(&[u8], u64)> = inputs.iter().map(|input| (&input[..], 0)).collect();
        let mut target = [0; BYTES];
        reduce(data_type, operation, &inputs, &mut target);
        target
    }

    #[test]
    fn every_element_behind_the_first_block_is_reduced_too() {
        const COUNT: usize = 2 * BLOCK + 3;
        let element = |place: usize, rank: u32| (place as u32 * rank).to_ne_bytes();
        let inputs = [1, 2, 3].map(|rank| {
            let mut input = [0; 4 * COUNT];
            let places = input.as_chunks_mut().0.iter_mut().enumerate();
            places.for_each(|(place, bytes)| *bytes = element(place, rank));
            input
        });
        let sums = reduced(DataType::Uint32, Operation::Sum, &inputs);
        for (place, &bytes) in sums.as_chunks().0.iter().enumerate() {
            assert_eq!(bytes, element(place, 6), "{place}");
        }
    }

    #[test]
    fn each_step_is_rounded() {
        // 2048 + 1 is 2048 in 16 bits, twice; summed in 32 bits first it were 2050.
        let inputs = [2048.0, 1.0, 1.0].map(|value| f16::from_f32(value).to_ne_bytes());
        let sum = reduced(DataType::Float16, Operation::Sum, &inputs);
        assert_eq!(f16::from_ne_bytes(sum).to_f32(), 2048.0);
    }

    #[test]
    fn a_mean_of_integers_is_cut_and_one_of_floats_is_of_multiplied_ones() {
        let inputs = [-7_i8, 2].map(i8::to_ne_bytes);
        let mean = reduced(DataType::Int8, Operation::Avg, &inputs);
        assert_eq!(i8::from_ne_bytes(mean), -2);
        let mean = reduced(DataType::Float32, Operation::Avg, &[1_f32.to_ne_bytes(); 3]);
        let third = (1.0_f64 / 3.0) as f32;
        assert_eq!(f32::from_ne_bytes(mean), third + third + third);
    }
}
