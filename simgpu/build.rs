//! Compiles the kernels for this CPU.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    for path in ["../kernels", "src/kernels/cpu.h", "src/kernels/host.cpp"] {
        println!("cargo:rerun-if-changed={path}");
    }
    cc::Build::new()
        .cpp(true)
        .cpp_link_stdlib(None)
        .std("c++17")
        // Moving bytes is most of what a simulated run does, in debug builds too.
        .opt_level(3)
        // The kernels see memory as words of several sizes.
        .flag("-fno-strict-aliasing")
        .flag("-fno-exceptions")
        .flag("-fno-rtti")
        // `#pragma unroll` is for the GPU.
        .flag("-Wno-unknown-pragmas")
        .include("../kernels")
        .file("src/kernels/host.cpp")
        .compile("kernels");
}
