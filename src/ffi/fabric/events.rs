//! The queue in which a provider reports its own errors, those that are of no operation.

use std::{cell::Cell, ffi::c_int, ptr};

use super::{
    Domain, Failure,
    bindings::{FI_EAGAIN, FI_WAIT_NONE, fi_eq_attr, fi_eq_err_entry, fid_ep, fid_eq},
    object::Object,
};
use crate::ffi::{CallError, text_of};

/// Polls in vain between two looks into the queue: what is in it is rare, and ends a case.
const POLLS: u32 = 256;

/// An endpoint's event queue. Without one, `efa` ends the process at an error that belongs to no
/// operation, such as an answer that a rank cannot get which has died.
pub(super) struct Events {
    object: Object<fid_eq>,
    polls: Cell<u32>,
}

impl Events {
    /// Opens a queue for `endpoint`, which is not enabled yet, and binds it; `None` if the provider
    /// has no such queues.
    pub(super) fn bind(domain: &Domain, endpoint: &Object<fid_ep>) -> Option<Self> {
        let library = domain.info().library();
        let fabric = domain.fabric();
        let open = fabric.function("fi_eq_open", |fabric| fabric.ops, |ops| ops.eq_open).ok()?;
        let mut attr = fi_eq_attr {
            size: 0,
            flags: 0,
            wait_obj: FI_WAIT_NONE,
            signaling_vector: 0,
            wait_set: ptr::null_mut(),
        };
        let mut raw = ptr::null_mut();
        // SAFETY: the fabric is open; `attr` and `raw` are live locals.
        let code = unsafe { open(fabric.raw(), &raw mut attr, &raw mut raw, ptr::null_mut()) };
        if code != 0 {
            return None;
        }
        // SAFETY: the queue has just been opened, for this owner.
        let object = unsafe { Object::own(library, "an event queue", raw) };
        endpoint.bind("fi_ep_bind", &object, 0).ok()?;
        Some(Self { object, polls: Cell::new(0) })
    }

    /// What a poll in vain calls: looks into the queue now and then.
    ///
    /// # Errors
    ///
    /// What the provider has reported there.
    #[inline]
    pub(super) fn look(&self, domain: &Domain) -> Result<(), Failure> {
        self.polls.set(self.polls.get().wrapping_add(1));
        if self.polls.get().is_multiple_of(POLLS) { self.read(domain) } else { Ok(()) }
    }

    #[cold]
    fn read(&self, domain: &Domain) -> Result<(), Failure> {
        // Room for any event; none but errors means anything to an endpoint without connections.
        let (mut event, mut buffer) = (0, [0_u64; 32]);
        let Ok(read) = self.object.function("fi_eq_read", |queue| queue.ops, |ops| ops.read) else {
            return Ok(());
        };
        let (place, length) = (ptr::from_mut(&mut buffer).cast(), size_of_val(&buffer));
        // SAFETY: the queue is open; `event` and `buffer` are live locals, of the length that is
        // said.
        let code = unsafe { read(self.object.raw(), &raw mut event, place, length, 0) };
        if code >= 0 || code == -(FI_EAGAIN as isize) {
            return Ok(());
        }
        let failed = |source| Err(Failure { context: None, source });
        let readerr = self.object.function("fi_eq_readerr", |queue| queue.ops, |ops| ops.readerr);
        let readerr = match readerr {
            Ok(readerr) => readerr,
            Err(source) => return failed(source),
        };
        // SAFETY: an entry of zeros and null pointers is a valid one, without room for data.
        let mut entry: fi_eq_err_entry = unsafe { std::mem::zeroed() };
        // SAFETY: the queue is open; `entry` is a live local.
        let code = unsafe { readerr(self.object.raw(), &raw mut entry, 0) };
        let (library, object) = (domain.info().library(), domain.info().to_string());
        if code < 0 {
            let code = c_int::try_from(code).unwrap_or(c_int::MIN);
            return failed(library.error("fi_eq_readerr", code, object));
        }
        let cause = library.cause(entry.err, self.provider_words(&entry));
        failed(CallError::new("fi_eq_read", format!("{object}, outside of operations"), cause))
    }

    /// The provider's own sentence about an error.
    fn provider_words(&self, entry: &fi_eq_err_entry) -> Option<String> {
        let mut buffer = [0; 256];
        let strerror =
            self.object.function("fi_eq_strerror", |queue| queue.ops, |ops| ops.strerror).ok()?;
        let (raw, data) = (self.object.raw(), entry.err_data.cast_const());
        let (place, length) = (buffer.as_mut_ptr(), buffer.len());
        // SAFETY: the queue is open and was not read since it gave `entry`; `buffer` is as long as
        // the call is told.
        let text = unsafe { strerror(raw, entry.prov_errno, data, place, length) };
        // SAFETY: the answer is null, `buffer` or the provider's own, and ends in NUL.
        unsafe { text_of(text) }
    }
}
