//! MPI's functions, looked up by name once.
//!
//! The C interface is a standard, the values of its handles and constants are not: `H` is what a
//! library's handles are, a pointer or an integer. A return code is an integer.

use std::ffi::{c_char, c_int, c_void};

use libloading::os::unix::Library;

use crate::ffi::library::find;

macro_rules! calls {
    ($($field:ident = $name:ident($($argument:ty),*);)*) => {
        /// Where each function is.
        #[derive(Debug)]
        pub(super) struct Calls<H> {
            $(pub(super) $field: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        impl<H> Calls<H> {
            /// Looks all functions up in `library`, which stays loaded; else the missing one's
            /// name.
            ///
            /// # Safety
            ///
            /// The handles of `library` are of the type `H`.
            pub(super) unsafe fn load(library: &Library) -> Result<Self, &'static str> {
                // SAFETY: each name has the signature that the MPI standard gives it, with the
                // handles that the caller vouches for.
                Ok(Self { $($field: unsafe { find(library, stringify!($name)) }?,)* })
            }
        }
    };
}

calls! {
    init_thread = MPI_Init_thread(*mut c_int, *mut *mut *mut c_char, c_int, *mut c_int);
    comm_set_errhandler = MPI_Comm_set_errhandler(H, H);
    comm_rank = MPI_Comm_rank(H, *mut c_int);
    comm_size = MPI_Comm_size(H, *mut c_int);
    isend = MPI_Isend(*const c_void, c_int, H, c_int, c_int, H, *mut H);
    irecv = MPI_Irecv(*mut c_void, c_int, H, c_int, c_int, H, *mut H);
    test = MPI_Test(*mut H, *mut c_int, *mut c_void);
    error_string = MPI_Error_string(c_int, *mut c_char, *mut c_int);
    abort = MPI_Abort(H, c_int);
    finalize = MPI_Finalize();
}
