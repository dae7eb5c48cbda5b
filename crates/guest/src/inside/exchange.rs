//! One exchange: a stream of the wire, opened by the worker with a request.

use std::sync::Arc;
use std::time::Duration;

use bellglass_protocol::id::CallId;
use bellglass_protocol::mux::MuxStream;
use bellglass_protocol::step::{StepStatus, ToolError};
use bellglass_protocol::tool::ToolCall;
use bellglass_protocol::wire::{
    CallResult, Frame, FrameCodec, PROTOCOL_VERSION, Reply, Request, WireError,
};
use futures::{SinkExt, StreamExt};
use tokio_util::codec::Framed;

use super::Guest;
use super::calls::{Admission, Call};
use super::failure::failure;
use super::files::checkpoint::Wanted;
use super::follow::follow;
use super::{desktop, kernel, ports, service, standby, terminal, tools, transfer, tunnel};

pub(super) type Wire = Framed<MuxStream, FrameCodec>;

pub(super) async fn serve(guest: &Arc<Guest>, stream: MuxStream) -> Result<(), WireError> {
    let mut wire = Framed::new(stream, FrameCodec::for_guest());
    let request = match wire.next().await {
        Some(Ok(Frame::Message(text))) => serde_json::from_slice::<Request>(&text),
        Some(Ok(_)) => {
            let error = failure("bad_request", "an exchange begins with a request");
            return answer(wire, Reply::Error { error }).await;
        }
        Some(Err(error)) => {
            let error = failure("bad_request", error.to_string());
            return answer(wire, Reply::Error { error }).await;
        }
        None => return Ok(()),
    };
    let request = match request {
        Ok(request) => request,
        Err(error) => {
            let error = failure("bad_request", format!("a request that cannot be read: {error}"));
            return answer(wire, Reply::Error { error }).await;
        }
    };
    let mut probe = guest.probe.clone();
    if probe.wait_for(Option::is_some).await.is_err() {
        let error = failure("internal_error", "nobody could look around in this sandbox");
        return answer(wire, Reply::Error { error }).await;
    }
    match request {
        Request::Hello { .. } => {
            let probe = probe.borrow().clone().unwrap_or_default();
            // The worker compares the versions: it is the side that can be chosen anew.
            let (protocol, version) = (PROTOCOL_VERSION, env!("CARGO_PKG_VERSION").into());
            answer(wire, Reply::Welcome { protocol, version, probe }).await
        }
        // That it came at all is what it says.
        Request::Attend => answer(wire, Reply::Ok).await,
        Request::Call { id, call, timeout_ms, received } => {
            match admit(guest, id, call, Duration::from_millis(timeout_ms)) {
                Ok(call) => follow(wire, call, received).await,
                Err(error) => answer(wire, Reply::Error { error }).await,
            }
        }
        Request::CancelCall { id } => answer(wire, ok_or(guest.calls.cancel(&id))).await,
        Request::ForgetCall { id } => answer(wire, ok_or(guest.calls.forget(&id))).await,
        Request::ReadAttachment { id, index } => match guest.calls.attachment(&id, index) {
            Ok(given) => transfer::send_content(wire, given.content).await,
            Err(error) => answer(wire, Reply::Error { error }).await,
        },
        Request::ReadNotebook { language } => match guest.kernels.notebook(language).await {
            Ok(notebook) => transfer::send_content(wire, notebook).await,
            Err(error) => answer(wire, Reply::Error { error }).await,
        },
        Request::ReadScreen => match desktop::last_look(guest).await {
            Ok(picture) => transfer::send_content(wire, picture).await,
            Err(error) => answer(wire, Reply::Error { error }).await,
        },
        Request::StartDesktop { screen } => {
            answer(wire, ok_or(desktop::start(guest, screen).await)).await
        }
        Request::WarmKernel { language } => {
            kernel::warm(guest, language);
            answer(wire, Reply::Ok).await
        }
        Request::ReadFile { path } => transfer::read_file(guest, wire, path).await,
        Request::WriteFile { path, executable } => {
            transfer::write_file(guest, wire, path, executable).await
        }
        Request::DeleteFile { path } => transfer::delete_file(guest, wire, path).await,
        Request::ListFolder { path } => transfer::list_folder(guest, wire, path).await,
        Request::Pack => transfer::pack(guest, wire).await,
        Request::Checkpoint { since, number, most_bytes } => {
            transfer::checkpoint(guest, wire, Wanted { since, number, most_bytes }).await
        }
        Request::Restore { number } => transfer::restore(guest, wire, number).await,
        Request::StartService { command, environment } => {
            service::run(guest, wire, command, environment).await
        }
        Request::OpenWayOut { equipment } => {
            let opened = guest.way_out.open(guest.latest_wire.subscribe(), equipment).await;
            answer(wire, ok_or(opened)).await
        }
        Request::Connect { to } => tunnel::connect(guest, wire, to).await,
        Request::OpenTerminal { terminal } => terminal::open(guest, wire, terminal).await,
        Request::ListPorts => {
            let ports = tokio::task::spawn_blocking(ports::listening).await.unwrap_or_default();
            answer(wire, Reply::Ports { ports }).await
        }
    }
}

/// Sends the last reply of an exchange.
pub(super) async fn answer(mut wire: Wire, reply: Reply) -> Result<(), WireError> {
    wire.send(Frame::message(&reply)).await?;
    wire.close().await
}

pub(super) fn ok_or(done: Result<(), ToolError>) -> Reply {
    match done {
        Ok(()) => Reply::Ok,
        Err(error) => Reply::Error { error },
    }
}

/// Finds the call of this id, or starts it: as a task of its own, whatever becomes of the wire.
fn admit(
    guest: &Arc<Guest>,
    id: CallId,
    tool: ToolCall,
    limit: Duration,
) -> Result<Arc<Call>, ToolError> {
    let call = match guest.calls.admit(&id, &tool)? {
        Admission::Joined(call) => return Ok(call),
        Admission::Started(call) => call,
    };
    let (working, resting) = (guest.clone(), guest.clone());
    let (running, finishing) = (call.clone(), call.clone());
    let work = tokio::spawn(async move { tools::run(working, id, tool, limit, &running).await });
    tokio::spawn(async move {
        let result = work.await.unwrap_or_else(|_| broken(&finishing));
        finishing.finish(result);
        standby::fill_later(&resting);
    });
    Ok(call)
}

/// A call whose task broke still has an end.
fn broken(call: &Call) -> CallResult {
    CallResult {
        status: StepStatus::Failed,
        exit_code: None,
        signal: None,
        text: None,
        error: Some(failure("internal_error", "the tool itself broke; try again in another way")),
        duration_us: 0,
        output_bytes: call.output.total(),
        memory_kills: 0,
        note: None,
        attachments: Vec::new(),
    }
}
