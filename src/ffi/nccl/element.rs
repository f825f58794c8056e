//! What is moved and how it is reduced.

use std::ffi::c_void;

use super::{
    Communicator, Library, Missing, Version,
    bindings::{self, ncclDataType_t, ncclRedOp_t},
};
use crate::{ffi::CallError, units::Bytes};

/// The type of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataType {
    /// 8 bits with a sign.
    Int8,
    /// 8 bits.
    Uint8,
    /// 32 bits with a sign.
    Int32,
    /// 32 bits.
    Uint32,
    /// 64 bits with a sign.
    Int64,
    /// 64 bits.
    Uint64,
    /// IEEE 754 half.
    Float16,
    /// IEEE 754 single.
    Float32,
    /// IEEE 754 double.
    Float64,
    /// The upper half of a single.
    Bfloat16,
    /// 4 bits of exponent, 3 of fraction.
    Float8e4m3,
    /// 5 bits of exponent, 2 of fraction.
    Float8e5m2,
}

impl DataType {
    pub(super) const fn code(self) -> ncclDataType_t {
        match self {
            Self::Int8 => bindings::ncclInt8,
            Self::Uint8 => bindings::ncclUint8,
            Self::Int32 => bindings::ncclInt32,
            Self::Uint32 => bindings::ncclUint32,
            Self::Int64 => bindings::ncclInt64,
            Self::Uint64 => bindings::ncclUint64,
            Self::Float16 => bindings::ncclFloat16,
            Self::Float32 => bindings::ncclFloat32,
            Self::Float64 => bindings::ncclFloat64,
            Self::Bfloat16 => bindings::ncclBfloat16,
            Self::Float8e4m3 => bindings::ncclFloat8e4m3,
            Self::Float8e5m2 => bindings::ncclFloat8e5m2,
        }
    }

    /// The size of one.
    pub const fn size(self) -> Bytes {
        Bytes::new(match self {
            Self::Int8 | Self::Uint8 | Self::Float8e4m3 | Self::Float8e5m2 => 1,
            Self::Float16 | Self::Bfloat16 => 2,
            Self::Int32 | Self::Uint32 | Self::Float32 => 4,
            Self::Int64 | Self::Uint64 | Self::Float64 => 8,
        })
    }
}

impl Library {
    /// Whether it has elements of this type: those of 8 bits with an exponent came with 2.24.
    pub fn has(&self, kind: DataType) -> bool {
        match kind {
            DataType::Float8e4m3 | DataType::Float8e5m2 => {
                self.version() >= Version { major: 2, minor: 24, patch: 0 }
            }
            _ => true,
        }
    }
}

/// How elements of several ranks become one.
#[derive(Clone, Copy, Debug)]
pub enum Reduction<'a> {
    /// Their sum.
    Sum,
    /// Their product.
    Product,
    /// The largest.
    Maximum,
    /// The smallest.
    Minimum,
    /// Their mean.
    Average,
    /// Their sum, each multiplied by this rank's factor first.
    Scaled(&'a Factor<'a>),
}

impl Reduction<'_> {
    pub(super) fn code(self) -> ncclRedOp_t {
        match self {
            Self::Sum => bindings::ncclSum,
            Self::Product => bindings::ncclProd,
            Self::Maximum => bindings::ncclMax,
            Self::Minimum => bindings::ncclMin,
            Self::Average => bindings::ncclAvg,
            Self::Scaled(factor) => factor.operation,
        }
    }
}

/// What a communicator's elements are multiplied by before they are summed.
#[derive(Debug)]
pub struct Factor<'a> {
    communicator: &'a Communicator,
    operation: ncclRedOp_t,
}

impl<'a> Factor<'a> {
    /// Makes one of the bytes of an element of the type `kind`.
    ///
    /// # Errors
    ///
    /// The library cannot ([`Feature::ScaledSum`](super::Feature::ScaledSum)).
    ///
    /// # Panics
    ///
    /// The bytes are not those of one element.
    pub fn new(
        communicator: &'a Communicator,
        kind: DataType,
        element: &[u8],
    ) -> Result<Self, CallError> {
        const CALL: &str = "ncclRedOpCreatePreMulSum";
        assert_eq!(Bytes::of_len(element.len()), kind.size(), "a factor is one element");
        let library = communicator.library;
        let create = library.calls.ncclRedOpCreatePreMulSum.ok_or(Missing(CALL))?;
        let handle = communicator.live(CALL)?;
        // The call may read it as a number: so it lies as one.
        let mut value = [0_u64];
        for (place, byte) in element.iter().enumerate() {
            value[0] |= u64::from(*byte) << (8 * place);
        }
        let mut operation = 0;
        // SAFETY: the value is a live local that is read before the call returns, as the residence
        // says; `operation` is one that it only writes.
        let code = unsafe {
            create(
                &raw mut operation,
                value.as_mut_ptr().cast::<c_void>(),
                kind.code(),
                bindings::ncclScalarHostImmediate,
                handle,
            )
        };
        library.check(CALL, code, Some(handle), || communicator.to_string())?;
        Ok(Self { communicator, operation })
    }
}

impl Drop for Factor<'_> {
    fn drop(&mut self) {
        const CALL: &str = "ncclRedOpDestroy";
        let library = self.communicator.library;
        let Some(destroy) = library.calls.ncclRedOpDestroy else { return };
        // It is gone with a communicator that was aborted.
        let Ok(handle) = self.communicator.live(CALL) else { return };
        // SAFETY: the operation was made for this communicator and is destroyed only here, after
        // the groups that borrow it.
        let code = unsafe { destroy(self.operation, handle) };
        let object = || self.communicator.to_string();
        if let Err(err) = library.check(CALL, code, Some(handle), object) {
            crate::ffi::warn(&err);
        }
    }
}
