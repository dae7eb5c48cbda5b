//! The parts of a request that only a task has, checked.

use crate::job::Budget;
use crate::model_offer::ModelOffer;
use crate::request::{RequestError, invalid};

/// A bound that cannot be kept is refused now, rather than found out when the money is spent.
pub(crate) fn check_budget(
    budget: &Budget,
    model: &str,
    models: &ModelOffer,
) -> Result<(), RequestError> {
    match budget.usd {
        Some(usd) if usd.is_nan() || usd <= 0.0 => {
            Err(invalid("budget.usd", "must be more than 0"))
        }
        Some(_) => {
            let fallback = models.fallback.as_deref();
            match [Some(model), fallback].into_iter().flatten().find(|it| !models.has_price(it)) {
                Some(model) => Err(invalid(
                    "budget.usd",
                    &format!(
                        "cannot be kept: the price of {model} is unknown; set it under [model.prices]"
                    ),
                )),
                None => Ok(()),
            }
        }
        None => Ok(()),
    }
}

/// The word that stands for hosts among the tools that need approval.
pub const APPROVE_NETWORK: &str = "network";

pub(crate) fn check_approvals(tools: &[String]) -> Result<(), RequestError> {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '*');
    match tools
        .iter()
        .position(|tool| tool.is_empty() || tool.len() > 64 || !tool.chars().all(fits))
    {
        _ if tools.len() > 100 => Err(invalid("approve", "has more than 100 names")),
        Some(at) => Err(invalid(&format!("approve[{at}]"), "is not the name of a tool")),
        None => Ok(()),
    }
}

pub(crate) fn check_project(name: &Option<String>) -> Result<(), RequestError> {
    match name.as_deref().is_none_or(is_project_name) {
        true => Ok(()),
        false => Err(invalid("project", "must be 1 to 64 letters, digits, `-`, `_` and `.`")),
    }
}

pub fn is_project_name(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    (1..=64).contains(&name.len()) && name.chars().all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn projects_have_plain_names() {
        for (name, fits) in [("web.shop-2", true), ("", false), ("a b", false), ("a/b", false)] {
            assert_eq!(check_project(&Some(name.into())).is_ok(), fits, "{name}");
        }
        assert_eq!(check_project(&None), Ok(()));
    }

    #[test]
    fn approvals_name_tools() {
        let check = |names: &[&str]| {
            check_approvals(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>())
        };
        assert_eq!(check(&["shell", "mcp__git__*", "network"]), Ok(()));
        assert!(check(&["a b"]).is_err() && check(&[""]).is_err());
    }
}
