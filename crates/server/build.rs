//! Has this crate compiled again when the page was built again: the binary carries it.

fn main() {
    println!("cargo::rerun-if-changed=../../web/dist");
}
