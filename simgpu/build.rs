//! Names the library for those that look for the driver by name.

fn main() {
    // The file is never called libcuda, so no search by name finds it; but once it is loaded by
    // its path, a request for `libcuda.so` is answered with it.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so");
    println!("cargo:rerun-if-changed=build.rs");
}
