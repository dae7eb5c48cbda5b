//! How a token looks: random, with a beginning by which people and scanners know what it is.

use bellglass_store::access::TokenHash;
use sha2::{Digest as _, Sha256};

/// What the tokens of users begin with.
pub(crate) const TOKEN: &str = "bg_";
/// What the value of a user's session cookie begins with.
pub(crate) const SESSION: &str = "bgs_";

/// A new secret, and what is kept of it.
pub(crate) fn generate(beginning: &str) -> (String, TokenHash) {
    let text = format!("{beginning}{}", hex::encode(random::<32>()));
    let hash = hash_of(text.as_bytes());
    (text, hash)
}

pub(crate) fn hash_of(token: &[u8]) -> TokenHash {
    TokenHash(Sha256::digest(token).into())
}

/// A short name that is not in use: the chance is one in millions of millions.
pub(crate) fn new_id() -> String {
    hex::encode(random::<6>())
}

pub(crate) fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    // The kernel gives them from the moment it has booted; without them nothing here would be safe.
    getrandom::fill(&mut bytes).expect("the kernel gives random bytes");
    bytes
}
