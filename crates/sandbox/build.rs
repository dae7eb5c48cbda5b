//! Builds the guest as a static executable, so that the one binary can carry it.
//!
//! It is built by a cargo of its own, in a folder of its own, because it needs another profile and
//! static linking. What is released carries a small guest, other builds one that compiles fast.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

fn main() {
    let crate_folder = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("set by cargo"));
    let root = crate_folder.join("../..").canonicalize().expect("the workspace's root exists");
    for input in ["crates/guest", "crates/protocol", "Cargo.toml", "Cargo.lock"] {
        println!("cargo::rerun-if-changed={}", root.join(input).display());
    }
    println!("cargo::rerun-if-env-changed=BELLGLASS_GUEST");

    let guest = match env::var_os("BELLGLASS_GUEST") {
        Some(path) => PathBuf::from(path),
        None => build_guest(&root),
    };
    let carried = PathBuf::from(env::var_os("OUT_DIR").expect("set by cargo")).join("guest");
    fs::copy(&guest, &carried)
        .unwrap_or_else(|error| panic!("cannot copy the guest from {}: {error}", guest.display()));
    println!("cargo::rustc-env=BELLGLASS_GUEST_PATH={}", carried.display());
}

fn build_guest(root: &Path) -> PathBuf {
    let target_folder = target_folder(root).join("guest");
    let architecture = env::var("CARGO_CFG_TARGET_ARCH").expect("set by cargo");
    // musl makes the smaller file, but its standard library is not installed everywhere.
    let musl = format!("{architecture}-unknown-linux-musl");
    let target = if has_target(&musl) { musl } else { format!("{architecture}-unknown-linux-gnu") };

    let released = env::var("PROFILE").is_ok_and(|profile| profile == "release");
    let profile = if released { "guest" } else { "guest-dev" };

    let mut cargo = Command::new(env::var_os("CARGO").expect("set by cargo"));
    cargo.current_dir(root).args(["build", "--quiet", "--locked", "--package", "bellglass-guest"]);
    cargo.args(["--profile", profile, "--target", &target, "--target-dir"]).arg(&target_folder);
    // What cargo set for this build script describes another build.
    for (name, _) in env::vars_os() {
        let name = name.to_string_lossy();
        let inherited = name.starts_with("CARGO_") && !name.starts_with("CARGO_HOME");
        if inherited || name == "RUSTFLAGS" || name.starts_with("RUSTC") || name == "CLIPPY_ARGS" {
            cargo.env_remove(&*name);
        }
    }
    cargo.env("RUSTFLAGS", "-C target-feature=+crt-static");
    let status = cargo.status().expect("cargo can be started");
    assert!(status.success(), "the guest could not be built");
    target_folder.join(target).join(profile).join("bellglass-guest")
}

/// Where cargo keeps what it builds: the part of `OUT_DIR` above the profile's folder.
fn target_folder(root: &Path) -> PathBuf {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("set by cargo"));
    let build = out.ancestors().find(|folder| folder.ends_with("build"));
    let profile = build.and_then(Path::parent);
    profile.and_then(Path::parent).map_or_else(|| root.join("target"), Path::to_path_buf)
}

fn has_target(target: &str) -> bool {
    let rustc = env::var_os("RUSTC").expect("set by cargo");
    let output = Command::new(rustc).args(["--print", "sysroot"]).output();
    output.is_ok_and(|output| {
        let sysroot = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        Path::new(&sysroot).join("lib/rustlib").join(target).join("lib").is_dir()
    })
}
