//! Who may call, asked before every handler, and the protective headers of every answer.
//!
//! Without a token the server trusts the local user, and a browser is a way for any web page to
//! speak as that user. So the Host must be a name of this machine (a rebound DNS name is not), and
//! a request that a page of another origin made is refused.

use std::sync::Arc;

use axum::extract::{MatchedPath, Request};
use axum::http::request::Parts;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, Method, Uri, header};
use bellglass_protocol::id::JobId;
use jiff::Timestamp;

use crate::attempts::Peer;
use crate::caller::Caller;
use crate::extract::parse_job_id;
use crate::problem::ApiError;
use crate::relay::Vouched;
use crate::rights::{self, JobRight, Right};
use crate::settings::{Secret, ServerSettings};
use crate::token::{SESSION, TOKEN, hash_of};
use crate::{Server, session, share};

/// What this machine is called by its own programs.
const OWN_HOSTS: [&str; 3] = ["localhost", "127.0.0.1", "[::1]"];

/// Who is let in without being a user.
#[derive(Clone)]
pub(crate) enum Guard {
    Token(Secret),
    LocalUser { hosts: Arc<[String]> },
}

impl Guard {
    pub(crate) fn new(settings: &ServerSettings) -> Self {
        // An empty token would let everybody in, so it counts as none.
        match &settings.token {
            Some(token) if !token.is_empty() => Self::Token(token.clone()),
            _ => {
                let own = OWN_HOSTS.map(String::from);
                let more = settings.allowed_hosts.iter().map(|host| host.to_ascii_lowercase());
                Self::LocalUser { hosts: own.into_iter().chain(more).collect() }
            }
        }
    }
}

/// Finds out who calls, and refuses what they have no right to.
pub(crate) async fn admit(server: &Server, request: &Parts) -> Result<Caller, ApiError> {
    if let Some(Vouched { owner }) = request.extensions.get() {
        // Rights and quotas were looked at where they came in.
        return Ok(Caller::Vouched { owner: owner.clone() });
    }
    let template = request.extensions.get::<MatchedPath>().map(MatchedPath::as_str);
    let right = match template {
        Some(template) => rights::needed(&request.method, template),
        // Whoever may look is told that nothing is there.
        None => Some(Right::Look),
    };
    if right == Some(Right::Probe) {
        return Ok(Caller::Nobody);
    }
    let caller = match &server.guard {
        // A browser sends no token by itself, and these pages are the same for everybody.
        Guard::Token(_) if right == Some(Right::Public) => return Ok(Caller::Nobody),
        Guard::Token(_) => with_token(server, request, right).await?,
        Guard::LocalUser { hosts } => {
            check_host(hosts, &request.method, &request.uri, &request.headers)?;
            locally(server, request).await?
        }
    };
    server.meter.request(&caller)?;
    caller.has(right)?;
    if matches!(right, Some(Right::Job(_))) && !caller.sees_everything() {
        let seen = caller.must_see(server, job_of(request)?).await;
        let Err(error @ ApiError::JobNotFound(_)) = seen else { return seen.map(|()| caller) };
        // Another's job may have been shown to them by a link, which they have beside what they are.
        let guest = guest(server, request, right).await?.ok_or(error)?;
        of_this_origin(request)?;
        guest.has(right)?;
        return Ok(guest);
    }
    Ok(caller)
}

/// The job that a request is about, read as the address has it: an id that is written otherwise is refused,
/// not passed on.
fn job_of(request: &Parts) -> Result<JobId, ApiError> {
    parse_job_id(request.uri.path().split('/').nth(2).unwrap_or_default())
}

async fn with_token(
    server: &Server,
    request: &Parts,
    right: Option<Right>,
) -> Result<Caller, ApiError> {
    if let Some(shown) = bearer(&request.headers) {
        let from = Peer::of(&request.extensions, &request.headers);
        return by_token(server, from, shown).await?.ok_or(ApiError::Unauthorized);
    }
    // A browser sends cookies whoever asked it to, so it must be one of our pages.
    if right == Some(Right::LogIn) {
        of_this_origin(request)?;
        return Ok(Caller::Nobody);
    }
    let now = Timestamp::now();
    let mut sessions = session::shown(&server.session_key, &request.headers, now);
    if let Some(session) = sessions.find(|session| server.ended_sessions.holds(session, now)) {
        of_this_origin(request)?;
        return Ok(Caller::Operator { session: Some(session) });
    }
    let known = match in_session(server, &request.headers).await? {
        Some(caller) => Some(caller),
        None => guest(server, request, right).await?,
    };
    let caller = known.ok_or(ApiError::Unauthorized)?;
    of_this_origin(request)?;
    Ok(caller)
}

/// Where no token is set, everybody on this machine looks after the server, unless they say that they
/// are somebody else.
async fn locally(server: &Server, request: &Parts) -> Result<Caller, ApiError> {
    match bearer(&request.headers) {
        // One that was revoked must not give more than it did.
        Some(shown) if shown.starts_with(TOKEN.as_bytes()) => {
            let from = Peer::of(&request.extensions, &request.headers);
            by_token(server, from, shown).await?.ok_or(ApiError::Unauthorized)
        }
        _ => {
            let somebody_else = in_session(server, &request.headers).await?;
            Ok(somebody_else.unwrap_or(Caller::Operator { session: None }))
        }
    }
}

/// Whom a token lets in, if it is one.
pub(crate) async fn by_token(
    server: &Server,
    from: Peer,
    shown: &[u8],
) -> Result<Option<Caller>, ApiError> {
    let judging = async {
        match &server.guard {
            Guard::Token(token) if token.matches(shown) => {
                Ok(Some(Caller::Operator { session: None }))
            }
            Guard::Token(_) | Guard::LocalUser { .. } => holder(server, shown).await,
        }
    };
    server.attempts.judged(from, shown, judging).await
}

async fn holder(server: &Server, shown: &[u8]) -> Result<Option<Caller>, ApiError> {
    let hash = hash_of(shown);
    let token = server.app.store.find_token(&hash, Timestamp::now()).await?;
    Ok(token.map(|token| Caller::Holder { token: Arc::new(token), hash }))
}

pub(crate) async fn in_session(
    server: &Server,
    headers: &HeaderMap,
) -> Result<Option<Caller>, ApiError> {
    for secret in session::kept(headers) {
        if let Some(caller) = holder(server, secret.as_bytes()).await? {
            return Ok(Some(caller));
        }
    }
    Ok(None)
}

/// Links open what belongs to one job, so they are looked at only there.
async fn guest(
    server: &Server,
    request: &Parts,
    right: Option<Right>,
) -> Result<Option<Caller>, ApiError> {
    if !matches!(right, Some(Right::Job(_))) {
        return Ok(None);
    }
    let Ok(job) = job_of(request) else { return Ok(None) };
    for shown in share::shown(&request.headers).filter(|link| link.job() == job).take(4) {
        let Some(key) = server.app.store.share_key(shown.job()).await? else { continue };
        if let Some(link) = shown.checked(&key, Timestamp::now()) {
            return Ok(Some(Caller::Guest { link, key }));
        }
    }
    Ok(None)
}

/// Whether a request names this machine as its own programs do, and no page of another origin made it.
pub(crate) fn check_local(request: &Request) -> Result<(), ApiError> {
    let own = OWN_HOSTS.map(String::from);
    check_host(&own, request.method(), request.uri(), request.headers())
}

fn check_host(
    hosts: &[String],
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
) -> Result<(), ApiError> {
    let host = named_host(uri, headers)?;
    let name = host.host();
    if !hosts
        .iter()
        .any(|known| known.eq_ignore_ascii_case(name) || known.eq_ignore_ascii_case(host.as_str()))
    {
        return Err(ApiError::ForbiddenHost(shortened(host.as_str())));
    }
    same_origin(method, headers, &host)
}

/// Who a program is that shows a token with which it may change the job. Such a token is taken out of the
/// request, whether it is good or not: what a sandbox serves must not see it.
pub(crate) async fn take_token(
    server: &Server,
    from: Peer,
    headers: &mut HeaderMap,
    job: JobId,
    is_visitor: bool,
) -> Result<Option<Caller>, ApiError> {
    let Some(shown) = bearer(headers).map(<[u8]>::to_vec) else { return Ok(None) };
    let is_operators = match &server.guard {
        Guard::Token(token) => token.matches(&shown),
        Guard::LocalUser { .. } => false,
    };
    let is_users = [TOKEN, SESSION].iter().any(|kind| shown.starts_with(kind.as_bytes()));
    // Who is let in already shows an app the app's own token, as often as it wants. That ours is taken out would
    // tell a page of the app when it has guessed it, so it does not get to try many.
    if is_visitor && !is_users && server.attempts.is_foreign(from, &shown, is_operators)? {
        return Ok(None);
    }
    if !is_operators && !is_users {
        // It is the app's own, or somebody guesses.
        return server.attempts.judged(from, &shown, async { Ok(None) }).await;
    }
    headers.remove(header::AUTHORIZATION);
    let Some(caller) = by_token(server, from, &shown).await? else { return Ok(None) };
    let may = caller.has_for_jobs(JobRight::Change) && caller.must_see(server, job).await.is_ok();
    Ok(may.then_some(caller))
}

pub(crate) fn put_protective_headers(headers: &mut HeaderMap) {
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert("cross-origin-resource-policy", HeaderValue::from_static("same-origin"));
    // A handler that serves a page or a stranger's file has a stricter policy of its own.
    headers
        .entry(header::CONTENT_SECURITY_POLICY)
        .or_insert(HeaderValue::from_static("frame-ancestors 'self'"));
}

fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let value = headers.get(header::AUTHORIZATION)?.as_bytes();
    let (scheme, token) = value.split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then(|| token.trim_ascii())
}

/// The host that a request names.
pub(crate) fn named_host(uri: &Uri, headers: &HeaderMap) -> Result<Authority, ApiError> {
    let authority = match headers.get(header::HOST) {
        Some(host) => Authority::try_from(host.as_bytes()).ok(),
        None => uri.authority().cloned(),
    };
    match authority {
        Some(authority) if !authority.as_str().contains('@') => Ok(authority),
        _ => Err(ApiError::ForbiddenHost(String::new())),
    }
}

fn of_this_origin(request: &Parts) -> Result<(), ApiError> {
    same_origin(&request.method, &request.headers, &named_host(&request.uri, &request.headers)?)
}

fn same_origin(method: &Method, headers: &HeaderMap, host: &Authority) -> Result<(), ApiError> {
    if let Some(origin) = headers.get(header::ORIGIN) {
        let authority = origin.to_str().ok().and_then(|origin| {
            origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"))
        });
        if !authority.is_some_and(|authority| authority.eq_ignore_ascii_case(host.as_str())) {
            return Err(ApiError::ForbiddenOrigin);
        }
    }
    let site = headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
    let foreign = matches!(site, Some(b"cross-site" | b"same-site"));
    if foreign && !matches!(*method, Method::GET | Method::HEAD) {
        return Err(ApiError::ForbiddenOrigin);
    }
    Ok(())
}

fn shortened(text: &str) -> String {
    text.chars().take(100).collect()
}
