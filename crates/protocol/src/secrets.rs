//! Which secrets of an installation a job asks for. Only names: no value is ever part of a job.

use std::collections::{BTreeMap, BTreeSet};

use crate::network::NetworkPolicy;

const MOST: usize = 50;
const LONGEST_VARIABLE: usize = 64;

/// Says where a request for secrets is wrong, and why.
pub(crate) fn check(
    wanted: &BTreeMap<String, String>,
    network: &NetworkPolicy,
    known: &BTreeSet<String>,
) -> Result<(), (String, &'static str)> {
    let whole = |why| Err(("secrets".to_owned(), why));
    if wanted.len() > MOST {
        return whole("has more than 50 secrets");
    }
    for (variable, name) in wanted {
        if !is_variable(variable) {
            return whole(
                "has a name that cannot be an environment variable; use letters, digits and `_`",
            );
        }
        if !known.contains(name) {
            return Err((
                format!("secrets.{variable}"),
                "names a secret that this server does not have; the operator adds it under \
                 [secrets] in bellglass.toml",
            ));
        }
    }
    if !wanted.is_empty() && *network == NetworkPolicy::None {
        return whole("are of no use without `network`; name their hosts there");
    }
    Ok(())
}

fn is_variable(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let begins = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    begins && name.len() <= LONGEST_VARIABLE && name.chars().all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mistake_has_its_place() {
        let known = BTreeSet::from(["github".to_owned()]);
        for (variable, name, network, expected) in [
            ("GITHUB_TOKEN", "github", NetworkPolicy::Open, None),
            ("_t1", "github", NetworkPolicy::Registries, None),
            ("T", "github", NetworkPolicy::None, Some("secrets")),
            ("T", "gitlab", NetworkPolicy::Open, Some("secrets.T")),
            ("a-b", "github", NetworkPolicy::Open, Some("secrets")),
            ("1a", "github", NetworkPolicy::Open, Some("secrets")),
            ("", "github", NetworkPolicy::Open, Some("secrets")),
        ] {
            let wanted = BTreeMap::from([(variable.to_owned(), name.to_owned())]);
            let place = check(&wanted, &network, &known).err().map(|(place, _)| place);
            assert_eq!(place.as_deref(), expected, "{variable} {name}");
        }
        assert_eq!(check(&BTreeMap::new(), &NetworkPolicy::None, &known), Ok(()));
    }
}
