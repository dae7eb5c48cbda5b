//! A guest that is malicious itself: whatever it sends, the worker's side answers with an error, in
//! bounded time and bounded memory. `docs/SECURITY.md` lists these tests.

mod fake;
mod frames;
mod greeting;
mod replies;
mod streams;
