//! What is moved and how it is reduced.

use std::ffi::c_void;

use super::{
    Communicator, Library, Version,
    bindings::{self, ncclDataType_t, ncclRedOp_t},
    calls::required,
};
use crate::{
    ffi::CallError,
    plan::{DataType, Reduction},
    units::Bytes,
};

/// NCCL's number of a type of elements.
pub(super) const fn element(data_type: DataType) -> ncclDataType_t {
    match data_type {
        DataType::Int8 => bindings::ncclInt8,
        DataType::Uint8 => bindings::ncclUint8,
        DataType::Int32 => bindings::ncclInt32,
        DataType::Uint32 => bindings::ncclUint32,
        DataType::Int64 => bindings::ncclInt64,
        DataType::Uint64 => bindings::ncclUint64,
        DataType::Half => bindings::ncclFloat16,
        DataType::Float => bindings::ncclFloat32,
        DataType::Double => bindings::ncclFloat64,
        DataType::Bfloat16 => bindings::ncclBfloat16,
        DataType::F8e4m3 => bindings::ncclFloat8e4m3,
        DataType::F8e5m2 => bindings::ncclFloat8e5m2,
    }
}

impl Library {
    /// Whether it has elements of this type: those of 8 bits with an exponent came with 2.24.
    pub fn has(&self, data_type: DataType) -> bool {
        match data_type {
            DataType::F8e4m3 | DataType::F8e5m2 => {
                self.version() >= Version { major: 2, minor: 24, patch: 0 }
            }
            _ => true,
        }
    }
}

/// NCCL's number of a reduction; that of a sum of products was made for this rank's factor.
///
/// # Panics
///
/// A sum of products has no factor.
pub(super) fn operator(reduction: Reduction, factor: Option<&Factor<'_>>) -> ncclRedOp_t {
    match reduction {
        Reduction::Sum => bindings::ncclSum,
        Reduction::Prod => bindings::ncclProd,
        Reduction::Max => bindings::ncclMax,
        Reduction::Min => bindings::ncclMin,
        Reduction::Avg => bindings::ncclAvg,
        Reduction::MulSum => factor.expect("a sum of products has a factor").operation,
    }
}

/// What a communicator's elements are multiplied by before they are summed.
#[derive(Debug)]
pub struct Factor<'a> {
    communicator: &'a Communicator,
    operation: ncclRedOp_t,
}

impl<'a> Factor<'a> {
    /// Makes one of the bytes of an element of this type.
    ///
    /// # Panics
    ///
    /// The bytes are not those of one element.
    pub fn new(
        communicator: &'a Communicator,
        data_type: DataType,
        number: &[u8],
    ) -> Result<Self, CallError> {
        const CALL: &str = "ncclRedOpCreatePreMulSum";
        assert_eq!(Bytes::of_len(number.len()), data_type.size(), "a factor is one element");
        let create = required(CALL, communicator.library.calls.ncclRedOpCreatePreMulSum)?;
        let handle = communicator.live(CALL)?;
        // The call may read it as a number: so it lies as one.
        let mut value = [0_u64];
        for (place, byte) in number.iter().enumerate() {
            value[0] |= u64::from(*byte) << (8 * place);
        }
        let mut operation = 0;
        // SAFETY: the value is a live local that is read before the call returns, as the residence
        // says; `operation` is one that it only writes.
        let code = unsafe {
            create(
                &raw mut operation,
                value.as_mut_ptr().cast::<c_void>(),
                element(data_type),
                bindings::ncclScalarHostImmediate,
                handle,
            )
        };
        communicator.check(CALL, code)?;
        Ok(Self { communicator, operation })
    }
}

impl Drop for Factor<'_> {
    fn drop(&mut self) {
        const CALL: &str = "ncclRedOpDestroy";
        let Some(destroy) = self.communicator.library.calls.ncclRedOpDestroy else { return };
        // It is gone with a communicator that was aborted.
        let Ok(handle) = self.communicator.live(CALL) else { return };
        // SAFETY: the operation was made for this communicator and is destroyed only here, after
        // the groups that borrow it.
        let code = unsafe { destroy(self.operation, handle) };
        if let Err(err) = self.communicator.check(CALL, code) {
            crate::ffi::warn(&err);
        }
    }
}
