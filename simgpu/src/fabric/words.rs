//! libfabric's words: of errors and of the values of attributes.

use std::{cell::RefCell, ffi::CString};

use super::bindings as fi;

/// libfabric's number of the protocol of efa (`rdma/fabric.h`).
pub(super) const FI_PROTO_EFA: u32 = 19;

/// Messages between two endpoints stay in order (`rdma/fabric.h`, `FI_ORDER_SAS`).
pub(super) const FI_ORDER_SAS: u64 = 1 << 6;

/// The words of `value`, which is of the type that `kind` says, as `fi_tostr(3)` gives them.
pub(super) fn of_value(value: u64, kind: fi::fi_type) -> String {
    let bits = |names: &[(u64, &str)]| {
        let set = names.iter().filter(|(bit, _)| value & bit != 0).map(|(_, name)| *name);
        format!("[ {} ]", set.collect::<Vec<_>>().join(", "))
    };
    match kind {
        fi::FI_TYPE_CAPS => bits(&[
            (fi::FI_MSG, "FI_MSG"),
            (fi::FI_RMA, "FI_RMA"),
            (fi::FI_READ, "FI_READ"),
            (fi::FI_WRITE, "FI_WRITE"),
            (fi::FI_RECV, "FI_RECV"),
            (fi::FI_SEND, "FI_SEND"),
            (fi::FI_REMOTE_READ, "FI_REMOTE_READ"),
            (fi::FI_REMOTE_WRITE, "FI_REMOTE_WRITE"),
            (fi::FI_HMEM, "FI_HMEM"),
        ]),
        fi::FI_TYPE_MODE => {
            bits(&[(fi::FI_CONTEXT, "FI_CONTEXT"), (fi::FI_CONTEXT2, "FI_CONTEXT2")])
        }
        fi::FI_TYPE_MR_MODE => {
            let bit = |mode: i32| u64::from(mode.cast_unsigned());
            bits(&[
                (bit(fi::FI_MR_LOCAL), "FI_MR_LOCAL"),
                (bit(fi::FI_MR_VIRT_ADDR), "FI_MR_VIRT_ADDR"),
                (bit(fi::FI_MR_ALLOCATED), "FI_MR_ALLOCATED"),
                (bit(fi::FI_MR_PROV_KEY), "FI_MR_PROV_KEY"),
                (bit(fi::FI_MR_HMEM), "FI_MR_HMEM"),
            ])
        }
        fi::FI_TYPE_MSG_ORDER => bits(&[(FI_ORDER_SAS, "FI_ORDER_SAS")]),
        fi::FI_TYPE_PROGRESS => "FI_PROGRESS_MANUAL".to_owned(),
        fi::FI_TYPE_PROTOCOL => "FI_PROTO_EFA".to_owned(),
        fi::FI_TYPE_THREADING => "FI_THREAD_DOMAIN".to_owned(),
        _ => format!("{value}"),
    }
}

thread_local! {
    /// The last answer of `fi_strerror`.
    static ANSWER: RefCell<CString> = RefCell::default();
}

/// The sentence of an error: the system's, or libfabric's own.
pub(super) fn of_error(code: i32) -> *const libc::c_char {
    let own = match code.cast_unsigned() {
        fi::FI_EOTHER => "Unspecified error",
        fi::FI_ETOOSMALL => "Provided buffer is too small",
        fi::FI_EAVAIL => "Error available",
        fi::FI_ENOEQ => "Missing or unavailable event queue",
        fi::FI_ENOCQ => "Missing or unavailable completion queue",
        fi::FI_ENOAV => "Missing or unavailable address vector",
        fi::FI_EOVERRUN => "Queue has been overrun",
        fi::FI_ENOKEY => "Required key not available",
        _ => "",
    };
    let sentence = match own {
        "" => std::io::Error::from_raw_os_error(code).to_string(),
        own => own.to_owned(),
    };
    ANSWER.with_borrow_mut(|answer| {
        *answer = CString::new(sentence).unwrap_or_default();
        answer.as_ptr()
    })
}
