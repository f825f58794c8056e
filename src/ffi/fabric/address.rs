//! Addresses of endpoints.

use std::{ffi::CStr, path::Path};

use serde::{Deserialize, Serialize};

/// An address of an endpoint, as its provider writes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Address(pub(super) Vec<u8>);

impl Address {
    /// Why an endpoint through shared memory cannot have this one as a peer. Such an address is
    /// `fi_shm://`, the process, the user and a number; the rest is also a file on `/dev/shm`.
    pub(super) fn objection_of_shm(&self) -> Option<&'static str> {
        let text = CStr::from_bytes_until_nul(&self.0).ok().and_then(|text| text.to_str().ok());
        let Some(name) = text.and_then(|text| text.strip_prefix("fi_shm://")) else {
            return Some("this is no address in shared memory");
        };
        // Endpoints of one process reach each other by plain pointers, and go on doing so when
        // one has been closed (seen with 1.17 and 2.5).
        if name.split(':').next() == Some(std::process::id().to_string().as_str()) {
            return Some("an endpoint of this process is no peer through shared memory");
        }
        // The provider follows a null pointer (seen with 1.17).
        if !Path::new("/dev/shm").join(name).exists() {
            return Some("its endpoint has gone, or has another /dev/shm");
        }
        None
    }
}
