//! Compiles the storage protocol and the registration of plugins: what kubelets and CSI drivers say to each other.

fn main() {
    println!("cargo:rerun-if-changed=proto");
    let protos = ["proto/csi.proto", "proto/registration.proto"];
    if let Err(e) = tonic_prost_build::configure().btree_map(".").compile_protos(&protos, &["proto"]) {
        println!("cargo:error=the storage protocol does not compile (is protoc installed?): {e}");
    }
}
