//! Who a request comes from, and what they may do.
//!
//! Found out once, at the door; handlers take it as an argument and ask it whose things they may show.

use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use bellglass_protocol::id::JobId;
use bellglass_store::Whose;
use bellglass_store::access::{Role, ShareKey, Token, TokenHash};

use crate::Server;
use crate::problem::ApiError;
use crate::rights::{JobRight, Right};
use crate::session::Session;
use crate::share::ShareLink;

#[derive(Clone, Debug)]
pub(crate) enum Caller {
    /// Somebody who has shown nothing.
    Nobody,
    /// The local user where there is no token, or whoever has the token of the configuration or a session
    /// begun with it.
    Operator { session: Option<Session> },
    /// Somebody whom another server of the cluster has let in, and on whose behalf it asks.
    Vouched { owner: Option<String> },
    /// Whoever has a token that was made for a user, or a session begun with one.
    Holder { token: Arc<Token>, hash: TokenHash },
    /// Whoever has a link to one job.
    Guest { link: ShareLink, key: ShareKey },
}

/// What somebody was let in by elsewhere.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Shown {
    /// Nothing that could end before its time.
    Nothing,
    /// A user's token or session.
    Token(TokenHash),
    Session(Session),
}

impl Caller {
    /// The user whose jobs are meant, where there are users.
    pub(crate) fn owner(&self) -> Option<String> {
        match self {
            Self::Holder { token, .. } => Some(token.user.clone()),
            Self::Vouched { owner } => owner.clone(),
            Self::Nobody | Self::Operator { .. } | Self::Guest { .. } => None,
        }
    }

    /// By what they are let in, so that it can be asked later whether it still holds.
    pub(crate) fn shown(&self) -> Shown {
        match self {
            Self::Holder { hash, .. } => Shown::Token(hash.clone()),
            Self::Operator { session: Some(session) } => Shown::Session(session.clone()),
            Self::Nobody | Self::Operator { .. } | Self::Vouched { .. } | Self::Guest { .. } => {
                Shown::Nothing
            }
        }
    }

    /// The name under which events say that they did something; `usual` where there are no users.
    pub(crate) fn actor(&self, usual: &str) -> String {
        self.owner().unwrap_or_else(|| usual.to_owned())
    }

    pub(crate) fn sees_everything(&self) -> bool {
        match self {
            Self::Operator { .. } | Self::Vouched { .. } => true,
            Self::Holder { token, .. } => token.role == Role::Admin,
            Self::Nobody | Self::Guest { .. } => false,
        }
    }

    /// The only user whose jobs they see; `None` for those who see everybody's.
    pub(crate) fn only_of(&self) -> Option<String> {
        // Nobody is called by the empty name, so a guest sees nothing in any list.
        (!self.sees_everything()).then(|| self.owner().unwrap_or_default())
    }

    /// Whose memories they see.
    pub(crate) fn whose(&self) -> Whose {
        match self.only_of() {
            Some(owner) => Whose::Of(Some(owner)),
            None => Whose::Anybodys,
        }
    }

    /// Whether they have a right, as far as that does not depend on whose job it is about.
    pub(crate) fn has(&self, right: Option<Right>) -> Result<(), ApiError> {
        let allowed = match right {
            Some(Right::Probe | Right::Public | Right::LogIn) => true,
            Some(Right::Look) => match self {
                Self::Operator { .. } | Self::Vouched { .. } | Self::Holder { .. } => true,
                Self::Nobody | Self::Guest { .. } => false,
            },
            Some(Right::Work) => self.may_work(),
            Some(Right::Job(right)) => self.has_for_jobs(right),
            Some(Right::Administer) | None => self.sees_everything(),
        };
        match self {
            _ if allowed => Ok(()),
            Self::Nobody => Err(ApiError::Unauthorized),
            Self::Guest { .. } if !matches!(right, Some(Right::Job(_))) => {
                Err(ApiError::Unauthorized)
            }
            Self::Guest { .. } => Err(ApiError::Forbidden("this link does not show that")),
            Self::Operator { .. } | Self::Vouched { .. } | Self::Holder { .. } => {
                Err(ApiError::Forbidden(match right {
                    Some(Right::Administer) | None => "only an administrator's token may do that",
                    _ => "this token may look but not change anything",
                }))
            }
        }
    }

    pub(crate) fn has_for_jobs(&self, right: JobRight) -> bool {
        match (self, right) {
            (Self::Nobody, _) => false,
            (Self::Guest { .. }, JobRight::See) => true,
            (Self::Guest { link, .. }, JobRight::Files) => link.files,
            (Self::Guest { link, .. }, JobRight::Result) => link.output,
            (Self::Guest { .. }, JobRight::Mind | JobRight::Change) => false,
            (_, JobRight::Change) => self.may_work(),
            (Self::Operator { .. } | Self::Vouched { .. } | Self::Holder { .. }, _) => true,
        }
    }

    fn may_work(&self) -> bool {
        match self {
            Self::Operator { .. } | Self::Vouched { .. } => true,
            Self::Holder { token, .. } => match token.role {
                Role::Admin | Role::User => true,
                Role::Viewer => false,
            },
            Self::Nobody | Self::Guest { .. } => false,
        }
    }

    /// Whether a job is theirs to see. One that is not looks like one that does not exist.
    pub(crate) async fn must_see(&self, server: &Server, job: JobId) -> Result<(), ApiError> {
        let theirs = match self {
            Self::Guest { link, .. } => link.job == job,
            Self::Nobody => false,
            Self::Operator { .. } | Self::Vouched { .. } => true,
            Self::Holder { token, .. } if token.role == Role::Admin => true,
            Self::Holder { token, .. } => {
                server.app.store.owner(job).await?.as_deref() == Some(token.user.as_str())
            }
        };
        if theirs { Ok(()) } else { Err(ApiError::JobNotFound(job)) }
    }
}

/// The door has put it there for every handler.
impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        parts.extensions.get::<Self>().cloned().ok_or(ApiError::Internal)
    }
}
