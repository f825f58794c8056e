//! An open interface: what endpoints and regions belong to.

use std::{cell::Cell, ptr, rc::Rc};

use super::{
    Info,
    bindings::{fid_domain, fid_fabric},
    object::Object,
};
use crate::ffi::CallError;

/// A domain and its fabric; closed on drop, which comes after that of its endpoints.
pub struct Domain {
    pub(super) object: Object<fid_domain>,
    fabric: Object<fid_fabric>,
    info: Info,
    /// The next region's key, where the provider leaves the choice to its user.
    next_key: Cell<u64>,
}

impl Domain {
    /// Opens what `info` offers.
    ///
    /// # Errors
    ///
    /// The provider's refusal: the interface went away, or is in use as often as it can be.
    pub fn open(info: &Info) -> Result<Rc<Self>, CallError> {
        let library = info.library();
        let object = || info.to_string();
        let mut raw = ptr::null_mut();
        let attr = info.parts.info.fabric_attr;
        // SAFETY: `attr` is a part of the offer, which `info` keeps; `raw` is a live local that
        // the call only writes.
        let code = unsafe { (library.calls.fi_fabric)(attr, &raw mut raw, ptr::null_mut()) };
        library.check("fi_fabric", code, object)?;
        // SAFETY: the fabric has just been opened, for this owner.
        let fabric = unsafe { Object::own(library, "a fabric", raw) };

        let open = fabric.function("fi_domain", |fabric| fabric.ops, |ops| ops.domain)?;
        let mut raw = ptr::null_mut();
        // SAFETY: the fabric is that of the offer, which `info` keeps; `raw` is a live local that
        // the call only writes.
        let code = unsafe { open(fabric.raw(), info.raw, &raw mut raw, ptr::null_mut()) };
        library.check("fi_domain", code, object)?;
        // SAFETY: the domain has just been opened, for this owner.
        let object = unsafe { Object::own(library, "a domain", raw) };
        Ok(Rc::new(Self { object, fabric, info: info.clone(), next_key: Cell::new(1) }))
    }

    /// The offer that was opened.
    pub fn info(&self) -> &Info {
        &self.info
    }

    pub(super) fn fabric(&self) -> &Object<fid_fabric> {
        &self.fabric
    }

    /// A key that no other region of the domain asks for.
    pub(super) fn take_key(&self) -> u64 {
        self.next_key.replace(self.next_key.get() + 1)
    }
}
