//! Compiles the device plugin protocol: what kubelets and device plugins say to each other.

fn main() {
    println!("cargo:rerun-if-changed=proto/deviceplugin.proto");
    if let Err(e) =
        tonic_prost_build::configure().btree_map(".").compile_protos(&["proto/deviceplugin.proto"], &["proto"])
    {
        println!("cargo:error=the device plugin protocol does not compile (is protoc installed?): {e}");
    }
}
