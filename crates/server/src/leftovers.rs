//! What a refused request still has to say: read and thrown away after the answer is decided.
//!
//! A client that sends without listening then still gets to read the answer, where a closed connection
//! would only tell it "reset".

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::http::header;
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt as _;

/// How much is thrown away, and for how long.
const AT_MOST: u64 = 256 << 20;
const FOR: Duration = Duration::from_secs(10);

/// Lends the body of a request to its handler, so that what that leaves can be read afterwards.
pub(crate) fn lend(request: Request) -> (Request, Option<Leftovers>) {
    // A client that asks first has sent nothing yet.
    if request.body().is_end_stream() || request.headers().contains_key(header::EXPECT) {
        return (request, None);
    }
    let (parts, body) = request.into_parts();
    let body = Arc::new(Mutex::new(body));
    let lent = Body::new(Lent(body.clone()));
    (Request::from_parts(parts, lent), Some(Leftovers(body)))
}

/// What the handler has not read yet.
pub(crate) struct Leftovers(Arc<Mutex<Body>>);

impl Leftovers {
    pub(crate) async fn discard(self) {
        let mut body = std::mem::take(&mut *open(&self.0));
        let reading = async {
            let mut left = AT_MOST;
            while let Some(Ok(frame)) = body.frame().await {
                let length = frame.data_ref().map_or(0, |data| data.len() as u64);
                match left.checked_sub(length) {
                    Some(rest) => left = rest,
                    None => return,
                }
            }
        };
        // Whether the end was reached makes no difference to the answer.
        let _ = tokio::time::timeout(FOR, reading).await;
    }
}

/// A body that its owner can take back.
struct Lent(Arc<Mutex<Body>>);

/// A handler that panicked left the body as good as it was.
fn open(body: &Mutex<Body>) -> MutexGuard<'_, Body> {
    body.lock().unwrap_or_else(PoisonError::into_inner)
}

impl HttpBody for Lent {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut *open(&self.0)).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        open(&self.0).is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        open(&self.0).size_hint()
    }
}
