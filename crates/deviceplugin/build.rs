//! Compiles the protocols: what kubelets, device plugins and monitors say to each other.

fn main() {
    for file in ["proto/deviceplugin.proto", "proto/podresources.proto", "proto/podresources_v1alpha1.proto"] {
        println!("cargo:rerun-if-changed={file}");
        if let Err(e) = tonic_prost_build::configure().btree_map(".").compile_protos(&[file], &["proto"]) {
            println!("cargo:error={file} does not compile (is protoc installed?): {e}");
        }
    }
}
