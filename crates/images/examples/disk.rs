//! Writes the demo guest's disk to the given file: `cargo run -p carrack-images --example disk -- disk.img`.
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let out = std::env::args().nth(1).ok_or("usage: disk FILE")?;
    Ok(carrack_images::guest::build_disk(out.as_ref())?)
}
