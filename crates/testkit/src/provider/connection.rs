//! One connection of the scripted provider: requests in, scripted bytes out.

use std::io;
use std::sync::Arc;

use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio_tungstenite::tungstenite::protocol::Role;

use super::request::{RecordedRequest, RequestFraming};
use super::response::{Gate, ResponseFraming, ScriptedEnding, ScriptedResponse};
use super::shared::ProviderState;
use crate::socket::{TestSocket, upgrade_answer};

/// Answers the calls of one connection. Its errors mean that the client left, which is counted where it
/// matters.
pub(super) async fn serve(socket: TcpStream, shared: Arc<ProviderState>) {
    drop(socket.set_nodelay(true));
    let (reader, mut writer) = socket.into_split();
    let mut reader = BufReader::new(reader);
    let end = loop {
        match one_call(&mut reader, &mut writer, &shared).await {
            Ok(AfterCall::Call) => {}
            Ok(AfterCall::Socket) => {
                let read = reader.buffer().to_vec();
                let stream = reader.into_inner().reunite(writer).expect("both are of one stream");
                let socket = TestSocket::of(stream, Role::Server, read).await;
                // The test may have ended.
                let _ = shared.opened.send(socket);
                return;
            }
            end => break end,
        }
    };
    if let Ok(AfterCall::Reset) = end
        && writer.as_ref().set_zero_linger().is_ok()
    {
        // Dropping it would send a regular end first.
        writer.forget();
    }
}

/// The next step of a connection after a call.
enum AfterCall {
    Call,
    Socket,
    Close,
    Reset,
}

/// Reads a request and answers it.
async fn one_call(
    reader: &mut BufReader<OwnedReadHalf>,
    writer: &mut OwnedWriteHalf,
    shared: &ProviderState,
) -> io::Result<AfterCall> {
    let Some(head) = read_head(reader).await? else { return Ok(AfterCall::Close) };
    let invalid = || io::Error::from(io::ErrorKind::InvalidData);
    let request = RecordedRequest::parse(&head).ok_or_else(invalid)?;
    let (framing, keeps_alive) = (request.body_framing(), request.keeps_alive());
    let (expects_continue, is_head) = (request.expects_continue(), request.method == "HEAD");
    if let Some(key) = request.header("sec-websocket-key").filter(|_| shared.has_ended()) {
        let answer = upgrade_answer(key);
        shared.begin(request);
        writer.write_all(answer.as_bytes()).await?;
        return Ok(AfterCall::Socket);
    }
    let (index, reply) = shared.begin(request);
    if expects_continue {
        writer.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
    }

    let mut body = Vec::new();
    let read = match framing {
        RequestFraming::Length(length) => read_exactly(reader, &mut body, length).await,
        RequestFraming::Chunked => read_chunks(reader, &mut body).await,
    };
    if let Some(request) = shared.script().requests.get_mut(index) {
        (request.body, request.complete) = (body, read.is_ok());
    }
    let sent = match read {
        Ok(()) => tokio::select! {
            sent = send(writer, &reply, is_head) => sent,
            () = client_left(reader) => Err(io::ErrorKind::ConnectionAborted.into()),
        },
        Err(error) => Err(error),
    };
    match sent {
        Ok(()) => shared.count(|counts| counts.answered += 1),
        Err(_) => shared.count(|counts| counts.hang_ups += 1),
    }
    sent?;
    Ok(match (reply.ending, reply.framing) {
        // With other framings the missing end is visible; here only a reset differs from an end.
        (ScriptedEnding::CutInBody(_), ResponseFraming::UntilClose) => AfterCall::Reset,
        (ScriptedEnding::Complete, ResponseFraming::ContentLength | ResponseFraming::Chunked)
            if keeps_alive =>
        {
            AfterCall::Call
        }
        (ScriptedEnding::Kept, _) => AfterCall::Call,
        _ => AfterCall::Close,
    })
}

/// The lines before the empty one; `None` if the client has closed its side.
async fn read_head(reader: &mut (impl AsyncBufRead + Unpin)) -> io::Result<Option<String>> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if reader.read_until(b'\n', &mut head).await? == 0 {
            return Ok(None);
        }
    }
    let head = String::from_utf8_lossy(&head);
    Ok(Some(head.trim_end_matches("\r\n").to_owned()))
}

/// Reads `length` bytes into `body`, which keeps the bytes received if the client leaves.
async fn read_exactly(
    reader: &mut (impl AsyncBufRead + Unpin),
    body: &mut Vec<u8>,
    length: usize,
) -> io::Result<()> {
    let length = u64::try_from(length).map_err(io::Error::other)?;
    let read = reader.take(length).read_to_end(body).await?;
    match u64::try_from(read) == Ok(length) {
        true => Ok(()),
        false => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

async fn read_chunks(
    reader: &mut (impl AsyncBufRead + Unpin),
    body: &mut Vec<u8>,
) -> io::Result<()> {
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).await?;
        let size = line.split(';').next().unwrap_or_default().trim();
        let size = usize::from_str_radix(size, 16).map_err(io::Error::other)?;
        read_exactly(reader, body, size).await?;
        read_exactly(reader, &mut Vec::new(), 2).await?;
        if size == 0 {
            return Ok(());
        }
    }
}

/// Returns when the client has closed its side; never if it sends its next call.
async fn client_left(reader: &mut BufReader<OwnedReadHalf>) {
    let mut next = [0];
    if !reader.buffer().is_empty() || reader.get_mut().peek(&mut next).await.is_ok_and(|n| n > 0) {
        std::future::pending::<()>().await;
    }
}

async fn send(
    writer: &mut OwnedWriteHalf,
    reply: &ScriptedResponse,
    is_head: bool,
) -> io::Result<()> {
    if reply.ending == ScriptedEnding::Silence {
        return std::future::pending().await;
    }
    wait_at(reply.head_gate.as_ref()).await;
    let head = reply.head().into_bytes();
    if let ScriptedEnding::CutInHead(bytes) = reply.ending {
        return writer.write_all(head.get(..bytes).unwrap_or(&head)).await;
    }
    writer.write_all(&head).await?;
    if is_head || reply.has_no_body() {
        return Ok(());
    }

    let mut left = match reply.ending {
        ScriptedEnding::CutInBody(bytes) => bytes,
        _ => usize::MAX,
    };
    let pieces = reply.pieces();
    let again = pieces.last().filter(|_| reply.ending == ScriptedEnding::Endless).copied();
    for piece in pieces.into_iter().chain(again.into_iter().cycle()) {
        if left == 0 {
            break;
        }
        wait_at(reply.piece_gate.as_ref()).await;
        // The header of a cut chunk announces the whole chunk.
        let now = piece.get(..left).unwrap_or(piece);
        let mut bytes = Vec::with_capacity(now.len() + 16);
        if reply.framing == ResponseFraming::Chunked {
            bytes.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
        }
        bytes.extend_from_slice(now);
        if reply.framing == ResponseFraming::Chunked && now.len() == piece.len() {
            bytes.extend_from_slice(b"\r\n");
        }
        writer.write_all(&bytes).await?;
        if again.is_none() {
            left -= now.len();
        }
    }

    if reply.ending == ScriptedEnding::Stalled {
        return std::future::pending().await;
    }
    if (reply.ending, reply.framing) == (ScriptedEnding::Complete, ResponseFraming::Chunked) {
        writer.write_all(b"0\r\n\r\n").await?;
    }
    Ok(())
}

async fn wait_at(gate: Option<&Gate>) {
    if let Some(gate) = gate {
        gate.wait().await;
    }
}
