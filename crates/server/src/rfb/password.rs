//! The password of a desktop's own port, and how native VNC viewers prove that they know it.
//!
//! What they have is old: eight characters, and DES over a challenge. It is for loopback only, where
//! it keeps other users of the machine out; whoever guesses has to wait after each try.

use bellglass_protocol::id::JobId;
use des::Des;
use des::cipher::{BlockCipherEncrypt as _, KeyInit as _};
use hmac::{Hmac, Mac as _};
use sha2::Sha256;
use subtle::ConstantTimeEq as _;

use crate::settings::Secret;

pub(crate) const CHALLENGE: usize = 16;

/// All that the protocol takes of a password.
const LONGEST: usize = 8;

/// Digits and letters without those that are easily taken for others: 32 of them.
const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

/// From what the passwords of desktops are made.
pub(crate) struct VncPasswords {
    /// The operator's word for the jobs that are no user's.
    set: Option<Secret>,
    key: Vec<u8>,
}

#[derive(Clone)]
pub(crate) struct VncPassword(String);

impl VncPasswords {
    pub(crate) fn new(set: Option<&Secret>, key: &[u8]) -> Self {
        Self { set: set.filter(|set| !set.is_empty()).cloned(), key: key.to_vec() }
    }

    /// The password of a job. Users are shown those of their own jobs, so a user's job never has one that
    /// opens another.
    pub(crate) fn of(&self, job: JobId, owner: Option<&str>) -> VncPassword {
        if let (Some(set), None) = (&self.set, owner) {
            return VncPassword(String::from_utf8_lossy(set.as_bytes()).into_owned());
        }
        let mut made =
            <Hmac<Sha256> as hmac::KeyInit>::new_from_slice(&self.key).expect("any length");
        made.update(format!("bellglass desktop of {job}").as_bytes());
        let bytes = made.finalize().into_bytes();
        let letters = bytes.iter().map(|byte| ALPHABET[usize::from(byte % 32)] as char);
        VncPassword(letters.take(LONGEST).collect())
    }
}

impl VncPassword {
    pub(crate) fn text(&self) -> &str {
        &self.0
    }

    /// Whether this is what somebody answers to a challenge who knows the password.
    pub(crate) fn answers(&self, challenge: &[u8; CHALLENGE], answer: &[u8]) -> bool {
        let mut key = [0; 8];
        for (place, byte) in key.iter_mut().zip(self.0.bytes()) {
            // The first who did this had the bits of each byte in the wrong order, and so has
            // everybody since.
            *place = byte.reverse_bits();
        }
        let cipher = Des::new(&key.into());
        let mut expected = [0; CHALLENGE];
        for (to, from) in expected.chunks_exact_mut(8).zip(challenge.chunks_exact(8)) {
            let mut block = [0; 8];
            block.copy_from_slice(from);
            let mut block = block.into();
            cipher.encrypt_block(&mut block);
            to.copy_from_slice(&block);
        }
        expected.ct_eq(answer).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_checked_as_every_viewer_makes_it() {
        // Made with another library's DES, for the password "password".
        let challenge: [u8; 16] = std::array::from_fn(|n| n as u8);
        let answer = hex::decode(ANSWER).unwrap();
        assert!(VncPassword("password".into()).answers(&challenge, &answer));
        assert!(VncPassword("password and more".into()).answers(&challenge, &answer));
        assert!(!VncPassword("passwort".into()).answers(&challenge, &answer));
        assert!(!VncPassword("password".into()).answers(&challenge, &answer[..8]));
    }

    const ANSWER: &str = "b866924125c8eebb9debc1db61c538e2";

    #[test]
    fn each_job_has_a_password_of_its_own_unless_it_is_set_for_jobs_of_nobody() {
        let jobs = ["01890a5d-ac96-774b-bcce-b302099a8057", "01890a5d-ac96-774b-bcce-b302099a8058"];
        let [one, other] = jobs.map(|job| job.parse::<JobId>().unwrap());
        let made = VncPasswords::new(None, b"key");
        let set = VncPasswords::new(Some(&Secret::new("sesame")), b"key");
        for (passwords, owner) in [(&made, None), (&made, Some("ada")), (&set, Some("ada"))] {
            let of = |job| passwords.of(job, owner).text().to_owned();
            assert_eq!(of(one), of(one));
            assert_ne!(of(one), of(other));
            assert_eq!(of(one).len(), LONGEST);
        }
        assert_eq!((set.of(one, None).text(), set.of(other, None).text()), ("sesame", "sesame"));
    }
}
