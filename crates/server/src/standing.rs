//! How long a caller stays let in: an answer that goes on for long ends when what they showed does.

use std::time::Duration;

use axum::body::Body;
use axum::http::header;
use axum::response::Response;
use futures::{FutureExt as _, StreamExt as _};
use jiff::Timestamp;

use crate::SharedServer;
use crate::caller::Caller;

/// How often it is looked whether a token was revoked through another server of the same store.
const LOOKED_EVERY: Duration = Duration::from_secs(15);

/// Done when the caller would not be let in any more; never for those who always are.
pub(crate) async fn ended(server: SharedServer, caller: Caller) {
    if is_always_let_in(&caller) {
        return std::future::pending().await;
    }
    let mut news = server.revoked.subscribe();
    loop {
        let now = Timestamp::now();
        let until = match &caller {
            Caller::Holder { token, .. } => token.expires_at,
            Caller::Guest { link, .. } => Timestamp::from_second(link.until).ok(),
            Caller::Operator { session: Some(session) } => {
                Timestamp::from_second(session.until).ok()
            }
            Caller::Operator { .. } | Caller::Vouched { .. } | Caller::Nobody => None,
        };
        let left = until.map(|until| Duration::try_from(until.duration_since(now)));
        let wait = match left {
            // It has run out already.
            Some(Err(_)) => return,
            Some(Ok(left)) if left.is_zero() => return,
            Some(Ok(left)) => left.min(LOOKED_EVERY),
            None => LOOKED_EVERY,
        };
        // Whichever it is, the store is asked.
        let _ = tokio::time::timeout(wait, news.changed()).await;
        let holds = match &caller {
            Caller::Holder { hash, .. } => {
                server.app.store.find_token(hash, Timestamp::now()).await.map(|it| it.is_some())
            }
            Caller::Guest { link, key } => {
                server.app.store.share_key(link.job).await.map(|now| now.as_ref() == Some(key))
            }
            Caller::Operator { session: Some(session) } => {
                Ok(server.ended_sessions.holds(session, Timestamp::now()))
            }
            Caller::Operator { .. } | Caller::Vouched { .. } | Caller::Nobody => Ok(true),
        };
        // A store that does not answer has revoked nothing.
        if matches!(holds, Ok(false)) {
            return;
        }
    }
}

fn is_always_let_in(caller: &Caller) -> bool {
    match caller {
        Caller::Operator { session } => session.is_none(),
        Caller::Vouched { .. } | Caller::Nobody => true,
        Caller::Holder { .. } | Caller::Guest { .. } => false,
    }
}

/// Ends an event stream together with the caller's right to hear it.
pub(crate) fn bounded(server: &SharedServer, caller: &Caller, response: Response) -> Response {
    let content_type = response.headers().get(header::CONTENT_TYPE).map(|value| value.as_bytes());
    let goes_on = matches!(content_type, Some(b"text/event-stream" | b"application/x-ndjson"));
    if !goes_on || is_always_let_in(caller) {
        return response;
    }
    let end = ended(server.clone(), caller.clone()).boxed();
    response.map(|body| Body::from_stream(body.into_data_stream().take_until(end)))
}
