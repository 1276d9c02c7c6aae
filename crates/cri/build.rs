//! Compiles the interface file without a protoc on the machine.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto/runtime.proto");
    let descriptors = protox::compile(["runtime.proto"], ["proto"])?;
    tonic_prost_build::configure()
        // Maps that are walked in one order in every run.
        .btree_map(".")
        // Credentials never reach a log through `{:?}`.
        .skip_debug([".runtime.v1.AuthConfig"])
        .build_server(false)
        .compile_fds(descriptors)?;
    Ok(())
}
