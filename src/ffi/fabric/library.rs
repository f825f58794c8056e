//! The library: where it is found, the functions that it exports, and its errors.

use std::{
    ffi::{CStr, c_char, c_int, c_void},
    mem::ManuallyDrop,
    os::raw::c_uint,
    path::{Path, PathBuf},
};

use super::{
    bindings::{self, fi_fabric_attr, fi_info, fid_fabric},
    grown,
};
use crate::ffi::{
    CallError, Cause,
    library::{Absent, load_first, path_of},
    simulation, text_of,
};

/// Where the library is looked for: AWS's installer has folders of its own.
const PLACES: [&str; 3] = [
    "/opt/amazon/efa/lib64/libfabric.so.1",
    "/opt/amazon/efa/lib/libfabric.so.1",
    "libfabric.so.1",
];

/// The oldest library that is used: that of the headers.
const OLDEST: u32 = version(1, 17);

/// A version as libfabric writes it.
pub(super) const fn version(major: u32, minor: u32) -> u32 {
    major << 16 | minor
}

/// libfabric, loaded. It is never unloaded: its threads and handlers would be left without code.
#[derive(Debug)]
pub struct Library {
    pub(super) calls: Calls,
    version: u32,
    /// The file that was loaded.
    pub path: PathBuf,
}

/// The functions that the library exports.
#[derive(Debug)]
pub(super) struct Calls {
    pub(super) fi_getinfo: unsafe extern "C" fn(
        u32,
        *const c_char,
        *const c_char,
        u64,
        *const fi_info,
        *mut *mut fi_info,
    ) -> c_int,
    pub(super) fi_freeinfo: unsafe extern "C" fn(*mut fi_info),
    pub(super) fi_dupinfo: unsafe extern "C" fn(*const fi_info) -> *mut fi_info,
    pub(super) fi_fabric:
        unsafe extern "C" fn(*mut fi_fabric_attr, *mut *mut fid_fabric, *mut c_void) -> c_int,
    pub(super) fi_tostr_r:
        unsafe extern "C" fn(*mut c_char, usize, *const c_void, c_uint) -> *mut c_char,
    fi_strerror: unsafe extern "C" fn(c_int) -> *const c_char,
    fi_version: unsafe extern "C" fn() -> u32,
}

impl Library {
    /// Loads the library from `path`, or without one from the first place that has it. On a simulated
    /// machine it is that machine's.
    pub fn load(path: Option<&Path>) -> Result<&'static Self, Absent> {
        let places = match (simulation::library(), path) {
            (Some(simulated), _) => vec![simulated],
            (None, Some(path)) => vec![path],
            (None, None) => PLACES.map(Path::new).to_vec(),
        };
        let (place, loaded) = load_first(places).map_err(|reason| {
            Absent::new(format!(
                "{reason}: this needs libfabric: install it (libfabric1 on Debian and Ubuntu, the \
                 EFA installer on AWS) or give --fabric-lib"
            ))
        })?;
        Self::new(place, ManuallyDrop::into_inner(loaded).into_raw())
    }

    fn new(place: &Path, handle: *mut c_void) -> Result<&'static Self, Absent> {
        let calls = Calls::load(handle).map_err(|name| {
            Absent::new(format!("{} has no {name}: {}", place.display(), needed()))
        })?;
        // SAFETY: the call takes nothing.
        let version = unsafe { (calls.fi_version)() };
        let path = path_of(calls.fi_version as *const ());
        if version < OLDEST {
            let found = readable(version);
            let needed = needed();
            return Err(Absent::new(format!("{} is libfabric {found}: {needed}", path.display())));
        }
        Ok(Box::leak(Box::new(Self { calls, version, path })))
    }

    /// Its version, such as `1.17`.
    pub fn version(&self) -> String {
        readable(self.version)
    }

    /// Whether regions can be parts of dma-bufs.
    pub fn has_dma_buf(&self) -> bool {
        self.version >= grown::DMABUF_VERSION
    }

    /// The version that is asked for: the newest whose structures are known here, or the
    /// library's own where that is older.
    pub(super) fn api_version(&self) -> u32 {
        self.version.min(grown::DMABUF_VERSION)
    }

    /// Turns a negative return code into an error that names the call, the object, the code, its
    /// name and the library's sentence.
    pub(super) fn check(
        &self,
        call: &'static str,
        code: c_int,
        object: impl FnOnce() -> String,
    ) -> Result<(), CallError> {
        if code >= 0 { Ok(()) } else { Err(self.error(call, code, object())) }
    }

    /// The error of a call that returned `code`.
    #[cold]
    pub(super) fn error(&self, call: &'static str, code: c_int, object: String) -> CallError {
        CallError::new(call, object, self.cause(code, None))
    }

    /// What `code` means, with what the provider says beyond the library's own sentence.
    pub(super) fn cause(&self, code: c_int, provider: Option<String>) -> Cause {
        let code = code.saturating_abs();
        // SAFETY: the call takes an integer, and answers every one.
        let text = unsafe { (self.calls.fi_strerror)(code) };
        // SAFETY: the answer is the library's own, kept until this thread asks again.
        let mut text = unsafe { text_of(text) }.unwrap_or_default();
        if let Some(more) = provider.filter(|more| !more.is_empty() && *more != text) {
            text = format!("{text}: {more}");
        }
        let name = NAMES.iter().find(|(known, _)| *known == code).map_or("unknown", |(_, n)| n);
        Cause::Library { code: code.unsigned_abs(), name: name.to_owned(), text }
    }
}

/// What a library must be.
fn needed() -> String {
    format!("this needs libfabric {} or newer", readable(OLDEST))
}

/// A version as a person reads it.
fn readable(version: u32) -> String {
    format!("{}.{}", version >> 16, version & 0xFFFF)
}

impl Calls {
    /// Looks all functions up, each in the version of its interface that the bindings describe:
    /// a newer library has newer ones beside them. Else the missing one's name.
    fn load(handle: *mut c_void) -> Result<Self, String> {
        Ok(Self {
            // SAFETY: the signature is that of FABRIC_1.3 in `rdma/fabric.h`.
            fi_getinfo: unsafe { find(handle, c"fi_getinfo", c"FABRIC_1.3") }?,
            // SAFETY: as above.
            fi_freeinfo: unsafe { find(handle, c"fi_freeinfo", c"FABRIC_1.3") }?,
            // SAFETY: as above.
            fi_dupinfo: unsafe { find(handle, c"fi_dupinfo", c"FABRIC_1.3") }?,
            // SAFETY: the signature is that of FABRIC_1.1 in `rdma/fabric.h`.
            fi_fabric: unsafe { find(handle, c"fi_fabric", c"FABRIC_1.1") }?,
            // SAFETY: the signature is that of FABRIC_1.4 in `rdma/fabric.h`.
            fi_tostr_r: unsafe { find(handle, c"fi_tostr_r", c"FABRIC_1.4") }?,
            // SAFETY: the signature is that of FABRIC_1.0 in `rdma/fi_errno.h`.
            fi_strerror: unsafe { find(handle, c"fi_strerror", c"FABRIC_1.0") }?,
            // SAFETY: the signature is that of FABRIC_1.0 in `rdma/fabric.h`.
            fi_version: unsafe { find(handle, c"fi_version", c"FABRIC_1.0") }?,
        })
    }
}

/// The function `name` in `version` of its interface; else the name again.
///
/// # Safety
///
/// `F` is a pointer to a function with the signature of that version.
unsafe fn find<F: Copy>(handle: *mut c_void, name: &CStr, version: &CStr) -> Result<F, String> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    let address = match simulation::library() {
        // SAFETY: `handle` is of a library that is never unloaded; both names end in NUL.
        None => unsafe { libc::dlvsym(handle, name.as_ptr(), version.as_ptr()) },
        // Its functions have one version, which has no name.
        // SAFETY: as above.
        Some(_) => unsafe { libc::dlsym(handle, name.as_ptr()) },
    };
    if address.is_null() {
        return Err(format!("{} of {}", name.to_string_lossy(), version.to_string_lossy()));
    }
    // SAFETY: the caller vouches that `F` is the pointer to what is there.
    Ok(unsafe { std::mem::transmute_copy::<*mut c_void, F>(&address) })
}

macro_rules! names {
    ($($name:ident)*) => {
        /// The names of the codes, so that they can be looked up in `fi_errno(3)`.
        const NAMES: &[(c_int, &str)] =
            &[$((bindings::$name as c_int, stringify!($name))),*];
    };
}

names! {
    FI_EPERM FI_ENOENT FI_EINTR FI_EIO FI_E2BIG FI_EBADF FI_EAGAIN FI_ENOMEM FI_EACCES FI_EFAULT
    FI_EBUSY FI_ENODEV FI_EINVAL FI_EMFILE FI_ENOSPC FI_ENOSYS FI_ENOMSG FI_ENODATA FI_EOVERFLOW
    FI_EMSGSIZE FI_ENOPROTOOPT FI_EOPNOTSUPP FI_EADDRINUSE FI_EADDRNOTAVAIL FI_ENETDOWN
    FI_ENETUNREACH FI_ECONNABORTED FI_ECONNRESET FI_ENOBUFS FI_EISCONN FI_ENOTCONN FI_ESHUTDOWN
    FI_ETIMEDOUT FI_ECONNREFUSED FI_EHOSTDOWN FI_EHOSTUNREACH FI_EALREADY FI_EINPROGRESS
    FI_EREMOTEIO FI_ECANCELED FI_EKEYREJECTED FI_EOTHER FI_ETOOSMALL FI_EOPBADSTATE FI_EAVAIL
    FI_EBADFLAGS FI_ENOEQ FI_EDOMAIN FI_ENOCQ FI_ECRC FI_ETRUNC FI_ENOKEY FI_ENOAV FI_EOVERRUN
    FI_ENORX
}
