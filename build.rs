//! Records the git revision, so that a result can be traced to the code that measured it; makes
//! bindings of libfabric's and NCCL's headers where `scripts/build-bindings` asks for them.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // HEAD names the branch; the log of HEAD changes with every commit, checkout and reset.
    println!("cargo::rerun-if-changed=.git/HEAD");
    println!("cargo::rerun-if-changed=.git/logs/HEAD");
    // What makes a build dirty.
    for path in ["src", "Cargo.toml", "Cargo.lock"] {
        println!("cargo::rerun-if-changed={path}");
    }
    let revision = Command::new("git")
        .args(["describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"])
        .output()
        .ok()
        .filter(|output| output.status.success())
        .and_then(|output| String::from_utf8(output.stdout).ok())
        .map_or_else(|| "unknown".to_owned(), |text| text.trim().to_owned());
    println!("cargo::rustc-env=G2G_GIT_REVISION={revision}");
    #[cfg(feature = "bindgen")]
    {
        fabric::make();
        nccl::make();
    }
}

/// What both sets of bindings have in common.
#[cfg(feature = "bindgen")]
mod bindings {
    use std::{env, fs, path::Path};

    use bindgen::{
        Builder,
        callbacks::{
            EnumVariantCustomBehavior, EnumVariantValue, IntKind, ItemInfo, ParseCallbacks,
        },
    };

    /// How the name of a type ends that [`typedef`] makes.
    const OF_FUNCTION: &str = "_of_function";

    #[derive(Debug)]
    struct Callbacks {
        constants: &'static str,
        kind: fn(&str) -> IntKind,
    }

    impl ParseCallbacks for Callbacks {
        fn int_macro(&self, name: &str, _: i64) -> Option<IntKind> {
            Some((self.kind)(name))
        }

        fn enum_variant_behavior(
            &self,
            _: Option<&str>,
            name: &str,
            _: EnumVariantValue,
        ) -> Option<EnumVariantCustomBehavior> {
            let is_used = self.constants.split_whitespace().any(|used| used == name);
            (!is_used).then_some(EnumVariantCustomBehavior::Hide)
        }

        fn item_name(&self, item: ItemInfo<'_>) -> Option<String> {
            item.name.strip_suffix(OF_FUNCTION).map(ToOwned::to_owned)
        }
    }

    /// In C: the type of a function; in Rust its name is that of the function.
    pub(super) fn typedef(function: &str) -> String {
        format!("typedef __typeof__({function}) {function}{OF_FUNCTION};\n")
    }

    /// Makes bindings of what `text` includes: of exactly these types, and of the constants by
    /// these names, macros of the type `kind` and enumerators.
    pub(super) fn builder(
        text: &str,
        types: &[&str],
        constants: &'static str,
        kind: fn(&str) -> IntKind,
    ) -> Builder {
        let root = env::var("CARGO_MANIFEST_DIR").expect("Cargo says where the package is");
        let mut builder = bindgen::builder()
            .header_contents("headers.h", text)
            .allowlist_recursively(false)
            .allowlist_type(format!(".*{OF_FUNCTION}"))
            .ctypes_prefix("libc")
            .prepend_enum_name(false)
            .layout_tests(false)
            .derive_debug(false)
            .generate_comments(false)
            .parse_callbacks(Box::new(Callbacks { constants, kind }))
            .rustfmt_configuration_file(Some(Path::new(&root).join("rustfmt.toml")));
        for pattern in types {
            builder = builder.allowlist_type(pattern);
        }
        for name in constants.split_whitespace() {
            builder = builder.allowlist_var(name);
        }
        builder
    }

    /// Cargo's folder for this build.
    pub(super) fn folder() -> String {
        env::var("OUT_DIR").expect("Cargo gives a folder for output")
    }

    /// Writes a file into Cargo's folder for this build.
    pub(super) fn write(name: &str, text: &str) {
        let path = Path::new(&folder()).join(name);
        fs::write(path, text).expect("the folder for output can be written");
    }
}

/// The types, constants and types of functions of NCCL's header.
#[cfg(feature = "bindgen")]
mod nccl {
    use std::env;

    use bindgen::callbacks::IntKind;

    use crate::bindings::{builder, folder, typedef, write};

    /// Where `scripts/build-bindings` says that the header is.
    const HEADER: &str = "G2G_NCCL_HEADER";

    /// What the header takes from CUDA's, which nobody needs beside it.
    const CUDA: [(&str, &str); 2] = [
        (
            "cuda_runtime.h",
            "#include <stddef.h>
            typedef struct CUstream_st *cudaStream_t;
            typedef struct CUevent_st *cudaEvent_t;",
        ),
        ("cuda_fp16.h", ""),
    ];

    const TYPES: [&str; 2] = [
        "nccl(Comm|Config|RedOp|DataType|ScalarResidence|Result|Window)_t|cudaStream_t",
        "nccl(Comm|Config_v[0-9]+|UniqueId|Window_vidmem)",
    ];

    const CONSTANTS: &str = "
        NCCL_VERSION_CODE NCCL_API_MAGIC NCCL_WIN_COLL_SYMMETRIC
        ncclSuccess ncclUnhandledCudaError ncclSystemError ncclInternalError ncclInvalidArgument
        ncclInvalidUsage ncclRemoteError ncclInProgress ncclTimeout
        ncclSum ncclProd ncclMax ncclMin ncclAvg ncclScalarHostImmediate
        ncclInt8 ncclUint8 ncclInt32 ncclUint32 ncclInt64 ncclUint64 ncclFloat16 ncclFloat32
        ncclFloat64 ncclBfloat16 ncclFloat8e4m3 ncclFloat8e5m2";

    const FUNCTIONS: &str = "
        ncclGetVersion ncclGetUniqueId ncclGetErrorString ncclGetLastError
        ncclCommInitRank ncclCommInitRankConfig ncclCommFinalize ncclCommDestroy ncclCommAbort
        ncclCommSplit ncclCommCount ncclCommGetAsyncError
        ncclCommRegister ncclCommDeregister ncclCommWindowRegister ncclCommWindowDeregister
        ncclMemAlloc ncclMemFree ncclGroupStart ncclGroupEnd
        ncclRedOpCreatePreMulSum ncclRedOpDestroy
        ncclAllReduce ncclAllGather ncclReduceScatter ncclBroadcast ncclReduce
        ncclAlltoAll ncclGather ncclScatter ncclSend ncclRecv";

    /// Writes `nccl.rs` into Cargo's folder for this build.
    pub(super) fn make() {
        println!("cargo::rerun-if-env-changed={HEADER}");
        let header = env::var(HEADER).expect("scripts/build-bindings says where nccl.h is");
        println!("cargo::rerun-if-changed={header}");
        for (name, text) in CUDA {
            write(name, text);
        }
        let functions: String = FUNCTIONS.split_whitespace().map(typedef).collect();
        let text = format!("#include \"{header}\"\n{functions}");
        let bindings = builder(&text, &TYPES, CONSTANTS, |_| IntKind::U32)
            .clang_arg(format!("-I{}", folder()))
            .raw_line("pub use cudarc::driver::sys::CUstream_st;")
            .generate()
            .expect("NCCL's header can be read");
        write("nccl.rs", &bindings.to_string());
    }
}

/// The types and constants of libfabric's headers; `src/ffi/fabric` has the calls.
#[cfg(feature = "bindgen")]
mod fabric {
    use bindgen::callbacks::IntKind;

    use crate::bindings::{builder, write};

    const HEADERS: &str = "#include <rdma/fabric.h>
        #include <rdma/fi_cm.h>
        #include <rdma/fi_domain.h>
        #include <rdma/fi_endpoint.h>
        #include <rdma/fi_eq.h>
        #include <rdma/fi_errno.h>
        #include <rdma/fi_rma.h>";

    const TYPES: [&str; 6] = [
        "fi_(info|msg|msg_rma|rma_iov|context2|cq_data_entry|eq_err_entry|addr_t)|fid(_t)?",
        "fi_(av|bus|cq|device|domain|ep|eq|fabric|link|pci|rx|tx)_attr(__bindgen_ty_1)?",
        "fi_(av|bus|ep)_type|fi_(hmem_iface|link_state|progress|resource_mgmt|threading)",
        "fi_cq_(format|wait_cond)|fi_(type|wait_obj)",
        "fid_(fabric|domain|av|cq|ep|eq|mr|nic)",
        "fi_ops(_(av|cm|cq|domain|ep|eq|fabric|mr|msg|rma))?",
    ];

    const CONSTANTS: &str = "
        FI_MSG FI_RMA FI_READ FI_WRITE FI_RECV FI_SEND FI_REMOTE_READ FI_REMOTE_WRITE FI_HMEM
        FI_REMOTE_CQ_DATA FI_MORE FI_COMPLETION FI_DELIVERY_COMPLETE FI_CONTEXT FI_CONTEXT2
        FI_MR_LOCAL FI_MR_VIRT_ADDR FI_MR_ALLOCATED FI_MR_PROV_KEY FI_MR_ENDPOINT FI_MR_HMEM
        FI_AV_UNSPEC FI_AV_TABLE FI_BUS_PCI FI_CQ_COND_NONE FI_CQ_FORMAT_DATA FI_ENABLE FI_EP_RDM
        FI_HMEM_CUDA FI_HMEM_SYSTEM FI_HMEM_P2P_REQUIRED FI_OPT_ENDPOINT FI_OPT_FI_HMEM_P2P
        FI_LINK_DOWN FI_LINK_UP FI_PROGRESS_MANUAL FI_PROTO_SHM FI_RM_ENABLED FI_THREAD_DOMAIN
        FI_TYPE_CAPS FI_TYPE_MODE FI_TYPE_MR_MODE FI_TYPE_MSG_ORDER FI_TYPE_PROGRESS
        FI_TYPE_PROTOCOL FI_TYPE_THREADING FI_WAIT_NONE
        FI_EPERM FI_ENOENT FI_EINTR FI_EIO FI_E2BIG FI_EBADF FI_EAGAIN FI_ENOMEM FI_EACCES
        FI_EFAULT FI_EBUSY FI_ENODEV FI_EINVAL FI_EMFILE FI_ENOSPC FI_ENOSYS FI_ENOMSG FI_ENODATA
        FI_EOVERFLOW FI_EMSGSIZE FI_ENOPROTOOPT FI_EOPNOTSUPP FI_EADDRINUSE FI_EADDRNOTAVAIL
        FI_ENETDOWN FI_ENETUNREACH FI_ECONNABORTED FI_ECONNRESET FI_ENOBUFS FI_EISCONN FI_ENOTCONN
        FI_ESHUTDOWN FI_ETIMEDOUT FI_ECONNREFUSED FI_EHOSTDOWN FI_EHOSTUNREACH FI_EALREADY
        FI_EINPROGRESS FI_EREMOTEIO FI_ECANCELED FI_EKEYREJECTED FI_EOTHER FI_ETOOSMALL
        FI_EOPBADSTATE FI_EAVAIL FI_EBADFLAGS FI_ENOEQ FI_EDOMAIN FI_ENOCQ FI_ECRC FI_ETRUNC
        FI_ENOKEY FI_ENOAV FI_EOVERRUN FI_ENORX";

    /// What the headers only point to.
    const OPAQUE: [&str; 4] = ["fi_ops_atomic", "fi_ops_collective", "fi_ops_tagged", "fid_wait"];

    /// The functions that are called, by the table that holds them. Of the others the types are
    /// left out, and with them what only they take.
    const CALLED: [(&str, &[&str]); 11] = [
        ("fi_ops", &["close", "bind", "control"]),
        ("fi_ops_av", &["insert"]),
        ("fi_ops_cm", &["getname"]),
        ("fi_ops_cq", &["read", "readerr", "strerror"]),
        ("fi_ops_domain", &["av_open", "cq_open", "endpoint"]),
        ("fi_ops_ep", &["getopt", "setopt"]),
        ("fi_ops_eq", &["read", "readerr", "strerror"]),
        ("fi_ops_fabric", &["domain", "eq_open"]),
        ("fi_ops_mr", &["regattr"]),
        ("fi_ops_msg", &["recvmsg", "sendmsg", "injectdata"]),
        ("fi_ops_rma", &["readmsg", "writemsg"]),
    ];

    /// The type of what a macro is stored in.
    fn kind(name: &str) -> IntKind {
        let is_int = name.starts_with("FI_E") || name.starts_with("FI_MR_");
        if is_int { IntKind::Int } else { IntKind::U64 }
    }

    /// The bindings without the types of functions that nothing calls.
    fn without_uncalled(bindings: &str) -> String {
        let mut called = None;
        let mut kept = String::new();
        let mut lines = bindings.lines();
        while let Some(line) = lines.next() {
            if let Some(name) = line.strip_prefix("pub struct ") {
                let table = CALLED.iter().find(|(table, _)| name.split(' ').next() == Some(table));
                called = table.map(|(_, called)| called);
            }
            let member = line.strip_prefix("    pub ").and_then(|member| member.split_once(':'));
            match (called, member) {
                (Some(called), Some((name, kind))) if name != "size" && !called.contains(&name) => {
                    let mut end = kind;
                    while !end.ends_with(">,") {
                        end = lines.next().expect("a table holds functions");
                    }
                    let kind = "::std::option::Option<unsafe extern \"C\" fn()>";
                    kept.push_str(&format!("    pub {name}: {kind},\n"));
                }
                _ => kept.push_str(&format!("{line}\n")),
            }
        }
        kept
    }

    /// Writes `fabric.rs` into Cargo's folder for this build.
    pub(super) fn make() {
        let mut builder = builder(HEADERS, &TYPES, CONSTANTS, kind)
            .raw_line("use super::grown::{fi_cq_err_entry, fi_mr_attr};")
            .raw_line("pub use libc::iovec;");
        for name in OPAQUE {
            builder = builder.raw_line(format!("pub enum {name} {{}}"));
        }
        let bindings = builder.generate().expect("libfabric's headers can be read");
        write("fabric.rs", &without_uncalled(&bindings.to_string()));
    }
}
