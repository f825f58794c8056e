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
        bindings::make();
        nccl::make();
    }
}

/// The types, constants and functions of NCCL's header; `src/ffi/nccl` has the calls, and holds
/// them against these functions.
#[cfg(feature = "bindgen")]
mod nccl {
    use std::{env, path::Path};

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

    const TYPES: &str = "nccl(Comm_t|UniqueId|Result_t|Config_t|RedOp_t|DataType_t|\
        ScalarResidence_t|Window_t)";

    const CONSTANTS: &str = "NCCL_(VERSION_CODE|UNIQUE_ID_BYTES|CONFIG_UNDEF_INT|API_MAGIC|\
        SPLIT_NOCOLOR|WIN_DEFAULT|WIN_COLL_SYMMETRIC|WIN_REQUIRED_ALIGNMENT|SHRINK_DEFAULT|\
        SHRINK_ABORT|REVOKE_DEFAULT)";

    const FUNCTIONS: [&str; 4] = [
        "ncclGet(Version|UniqueId|ErrorString|LastError)|ncclMem(Alloc|Free)|ncclGroup(Start|End)",
        "ncclComm(InitRank|InitRankConfig|Finalize|Destroy|Abort|Revoke|Split|Shrink)",
        "ncclComm(Count|CuDevice|UserRank|GetAsyncError|(Window)?(Register|Deregister))",
        "ncclRedOp.*|nccl(AllReduce|AllGather|ReduceScatter|Broadcast|Reduce|Send|Recv|AlltoAll|\
         Gather|Scatter)",
    ];

    /// Writes `nccl.rs` into Cargo's folder for this build.
    pub(super) fn make() {
        println!("cargo::rerun-if-env-changed={HEADER}");
        let root = env::var("CARGO_MANIFEST_DIR").expect("Cargo says where the package is");
        let folder = env::var("OUT_DIR").expect("Cargo gives a folder for output");
        let header = env::var(HEADER).expect("scripts/build-bindings says where nccl.h is");
        println!("cargo::rerun-if-changed={header}");
        let mut builder = bindgen::builder()
            .header(header)
            .clang_arg(format!("-I{folder}"))
            .raw_line("pub use cudarc::driver::sys::CUstream_st;")
            .blocklist_type("CUstream_st")
            .allowlist_type(TYPES)
            .allowlist_var(CONSTANTS)
            .blocklist_function("pnccl.*")
            .prepend_enum_name(false)
            .layout_tests(false)
            .derive_debug(false)
            .generate_comments(false)
            .rustfmt_configuration_file(Some(Path::new(&root).join("rustfmt.toml")));
        for (name, text) in CUDA {
            std::fs::write(Path::new(&folder).join(name), text)
                .expect("the folder for output can be written");
        }
        for pattern in FUNCTIONS {
            builder = builder.allowlist_function(pattern);
        }
        let bindings = builder.generate().expect("NCCL's header can be read");
        let path = Path::new(&folder).join("nccl.rs");
        bindings.write_to_file(path).expect("the folder for output can be written");
    }
}

/// The types and constants of libfabric's headers; `src/ffi/fabric` has the calls.
#[cfg(feature = "bindgen")]
mod bindings {
    use std::{env, path::Path};

    use bindgen::callbacks::{IntKind, ParseCallbacks};

    const HEADERS: &str = "#include <rdma/fabric.h>
        #include <rdma/fi_cm.h>
        #include <rdma/fi_domain.h>
        #include <rdma/fi_endpoint.h>
        #include <rdma/fi_eq.h>
        #include <rdma/fi_errno.h>
        #include <rdma/fi_rma.h>";

    const TYPES: [&str; 3] = [
        "fi_(info|av_attr|cq_attr|cq_data_entry|msg|msg_rma|context2|type)",
        "fid_(fabric|domain|av|cq|ep|mr)",
        "fi_ops_(cm|ep|msg|rma)",
    ];

    const CONSTANTS: [&str; 4] = [
        "FI_(MSG|RMA|READ|WRITE|SEND|RECV|REMOTE_READ|REMOTE_WRITE|HMEM|CONTEXT2?)",
        "FI_(REMOTE_CQ_DATA|MORE|COMPLETION|INJECT|DELIVERY_COMPLETE|ENABLE|PROTO_SHM)",
        "FI_OPT_(ENDPOINT|FI_HMEM_P2P)|FI_HMEM_P2P_REQUIRED",
        "FI_MR_(LOCAL|VIRT_ADDR|ALLOCATED|PROV_KEY|ENDPOINT|HMEM)|FI_E[A-Z0-9]+",
    ];

    /// What these headers have in an older form than the newest that is asked for.
    const GROWN: [&str; 2] = ["fi_cq_err_entry", "fi_mr_attr"];

    /// Nothing looks behind pointers to these.
    const OPAQUE: [&str; 18] = [
        "fi_atomic_attr",
        "fi_av_set_attr",
        "fi_cntr_attr",
        "fi_collective_attr",
        "fi_eq_attr",
        "fi_ops_atomic",
        "fi_ops_collective",
        "fi_ops_tagged",
        "fi_poll_attr",
        "fi_wait_attr",
        "fid_av_set",
        "fid_cntr",
        "fid_eq",
        "fid_mc",
        "fid_pep",
        "fid_poll",
        "fid_stx",
        "fid_wait",
    ];

    /// Numbers that are only passed on by calls that nothing makes.
    const NUMBERS: [&str; 3] = ["fi_collective_op", "fi_datatype", "fi_op"];

    /// Gives the constants the types of what they are stored in.
    #[derive(Debug)]
    struct Constants;

    impl ParseCallbacks for Constants {
        fn int_macro(&self, name: &str, _: i64) -> Option<IntKind> {
            let is_int = name.starts_with("FI_E") || name.starts_with("FI_MR_");
            Some(if is_int { IntKind::Int } else { IntKind::U64 })
        }
    }

    /// Writes `fabric.rs` into Cargo's folder for this build.
    pub(super) fn make() {
        let root = env::var("CARGO_MANIFEST_DIR").expect("Cargo says where the package is");
        let folder = env::var("OUT_DIR").expect("Cargo gives a folder for output");
        let mut builder = bindgen::builder()
            .header_contents("headers.h", HEADERS)
            .raw_line("use super::grown::{fi_cq_err_entry, fi_mr_attr};")
            .raw_line("pub use libc::iovec;")
            .blocklist_type("iovec")
            .prepend_enum_name(false)
            .layout_tests(false)
            .derive_debug(false)
            .generate_comments(false)
            .parse_callbacks(Box::new(Constants))
            .rustfmt_configuration_file(Some(Path::new(&root).join("rustfmt.toml")));
        for pattern in TYPES {
            builder = builder.allowlist_type(pattern);
        }
        for pattern in CONSTANTS {
            builder = builder.allowlist_var(pattern);
        }
        for name in GROWN {
            builder = builder.blocklist_type(name);
        }
        for name in OPAQUE {
            builder = builder.blocklist_type(name).raw_line(format!("pub enum {name} {{}}"));
        }
        for name in NUMBERS {
            builder = builder
                .blocklist_type(name)
                .raw_line(format!("pub type {name} = ::std::os::raw::c_uint;"));
        }
        let bindings = builder.generate().expect("libfabric's headers can be read");
        let path = Path::new(&folder).join("fabric.rs");
        bindings.write_to_file(path).expect("the folder for output can be written");
    }
}
