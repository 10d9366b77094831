//! Unpacks compressed bodies while they pass, with bounded memory.

use std::io::{self, Write};

use crate::headers::{Headers, text_of};

/// The most bytes that one piece may unpack to. More is a bomb, not an answer.
const MAX_PER_PIECE: usize = 16 * 1024 * 1024;
/// The most bytes that a whole body may unpack to.
const MAX_DECODED_BYTES: usize = 256 * 1024 * 1024;
/// The most codings of a body. No provider applies more.
const MAX_CODINGS: usize = 3;
/// The largest window of zstd. RFC 8878 asks decoders on the web for 8 MiB; larger windows only
/// cost memory.
const ZSTD_WINDOW_LOG_MAX: u32 = 23;
const BROTLI_BUFFER_BYTES: usize = 16 * 1024;

/// Unpacks a copy of a body while the body passes, piece by piece.
pub(super) struct Decoder {
    /// The decoders, that of the last applied coding first.
    codings: Vec<CodingDecoder>,
    decoded_bytes: usize,
}

enum CodingDecoder {
    Gzip(flate2::write::MultiGzDecoder<BoundedSink>),
    Zlib(flate2::write::ZlibDecoder<BoundedSink>),
    RawDeflate(flate2::write::DeflateDecoder<BoundedSink>),
    /// `deflate` is zlib by the standard and often raw in practice. Two bytes decide.
    Deflate(Vec<u8>),
    Brotli(Box<brotli::DecompressorWriter<BoundedSink>>),
    Zstd(zstd::stream::write::Decoder<'static, BoundedSink>),
}

/// The error of a body that cannot be read further: unknown coding, broken data, or too much of it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct DecodeError;

/// The output of a decoder for one piece, up to a bound.
#[derive(Default)]
struct BoundedSink(Vec<u8>);

impl Write for BoundedSink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len().saturating_add(bytes.len()) > MAX_PER_PIECE {
            return Err(io::Error::other("too much"));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Decoder {
    /// The decoder for `content-encoding`; `None` when the body is not packed.
    pub(super) fn of(headers: &dyn Headers) -> Result<Option<Self>, DecodeError> {
        let mut codings = Vec::new();
        // No body has more codings, and each has a line at most.
        for number in 0..=MAX_CODINGS {
            let Some(value) = headers.line("content-encoding", number) else { break };
            let value = text_of(value).ok_or(DecodeError)?;
            for name in value.split(',').map(|name| name.trim().to_ascii_lowercase()) {
                if !matches!(name.as_str(), "" | "identity") {
                    codings.push(CodingDecoder::named(&name)?);
                }
            }
        }
        let has_more = headers.line("content-encoding", MAX_CODINGS + 1).is_some();
        if has_more || codings.len() > MAX_CODINGS {
            return Err(DecodeError);
        }
        codings.reverse();
        Ok((!codings.is_empty()).then_some(Self { codings, decoded_bytes: 0 }))
    }

    /// The unpacked bytes of `piece`, as far as they are known yet.
    pub(super) fn decode(&mut self, piece: &[u8]) -> Result<Vec<u8>, DecodeError> {
        let mut bytes = piece.to_vec();
        for coding in &mut self.codings {
            bytes = coding.decode(&bytes).map_err(|_| DecodeError)?;
        }
        self.decoded_bytes = self.decoded_bytes.saturating_add(bytes.len());
        if self.decoded_bytes > MAX_DECODED_BYTES {
            return Err(DecodeError);
        }
        Ok(bytes)
    }
}

impl CodingDecoder {
    fn named(name: &str) -> Result<Self, DecodeError> {
        Ok(match name {
            "gzip" | "x-gzip" => {
                Self::Gzip(flate2::write::MultiGzDecoder::new(BoundedSink::default()))
            }
            "deflate" => Self::Deflate(Vec::new()),
            "br" => {
                let decoder =
                    brotli::DecompressorWriter::new(BoundedSink::default(), BROTLI_BUFFER_BYTES);
                Self::Brotli(Box::new(decoder))
            }
            "zstd" => {
                let mut decoder = zstd::stream::raw::Decoder::new().map_err(|_| DecodeError)?;
                let limit = zstd::stream::raw::DParameter::WindowLogMax(ZSTD_WINDOW_LOG_MAX);
                decoder.set_parameter(limit).map_err(|_| DecodeError)?;
                let writer =
                    zstd::stream::write::Decoder::with_decoder(BoundedSink::default(), decoder);
                Self::Zstd(writer)
            }
            _ => return Err(DecodeError),
        })
    }

    fn decode(&mut self, piece: &[u8]) -> io::Result<Vec<u8>> {
        if let Self::Deflate(first) = self {
            first.extend_from_slice(piece);
            let Some(zlib) = is_zlib(first) else { return Ok(Vec::new()) };
            let held = std::mem::take(first);
            *self = match zlib {
                true => Self::Zlib(flate2::write::ZlibDecoder::new(BoundedSink::default())),
                false => {
                    Self::RawDeflate(flate2::write::DeflateDecoder::new(BoundedSink::default()))
                }
            };
            return self.decode(&held);
        }
        match self {
            Self::Deflate(_) => {}
            // A flush makes the decoders return the available bytes, which a live stream needs.
            Self::Gzip(decoder) => write_flush(decoder, piece)?,
            Self::Zlib(decoder) => write_flush(decoder, piece)?,
            Self::RawDeflate(decoder) => write_flush(decoder, piece)?,
            Self::Brotli(decoder) => write_flush(decoder, piece)?,
            Self::Zstd(decoder) => write_flush(decoder, piece)?,
        }
        Ok(self.sink().map(|sink| std::mem::take(&mut sink.0)).unwrap_or_default())
    }

    fn sink(&mut self) -> Option<&mut BoundedSink> {
        Some(match self {
            Self::Gzip(decoder) => decoder.get_mut(),
            Self::Zlib(decoder) => decoder.get_mut(),
            Self::RawDeflate(decoder) => decoder.get_mut(),
            Self::Brotli(decoder) => decoder.get_mut(),
            Self::Zstd(decoder) => decoder.get_mut(),
            Self::Deflate(_) => return None,
        })
    }
}

fn write_flush(decoder: &mut impl Write, piece: &[u8]) -> io::Result<()> {
    decoder.write_all(piece)?;
    decoder.flush()
}

/// Whether a `deflate` body has the zlib header (RFC 1950, 2.2); `None` before its two bytes.
fn is_zlib(start: &[u8]) -> Option<bool> {
    let [first, second, ..] = start else { return None };
    let header = u16::from_be_bytes([*first, *second]);
    Some(first & 0x0f == 8 && first >> 4 <= 7 && header.is_multiple_of(31))
}

#[cfg(test)]
mod tests {
    use http::header::{self, HeaderMap};

    use super::*;

    fn decoder(encoding: &'static str) -> Decoder {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_ENCODING, header::HeaderValue::from_static(encoding));
        Decoder::of(&headers).unwrap().unwrap()
    }

    #[test]
    fn a_bomb_is_given_up_before_it_is_unpacked() {
        let zeros = vec![0_u8; 64 * 1024 * 1024];
        let packed = zstd::encode_all(&zeros[..], 3).unwrap();
        assert!(packed.len() < 100_000);
        assert_eq!(decoder("zstd").decode(&packed), Err(DecodeError));

        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        gzip.write_all(&zeros).unwrap();
        assert_eq!(decoder("gzip").decode(&gzip.finish().unwrap()), Err(DecodeError));

        let mut packed = Vec::new();
        brotli::BrotliCompress(&mut &zeros[..], &mut packed, &Default::default()).unwrap();
        assert_eq!(decoder("br").decode(&packed), Err(DecodeError));
    }

    #[test]
    fn a_large_window_is_refused() {
        let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
        encoder.window_log(27).unwrap();
        encoder.write_all(b"data: [DONE]\n\n").unwrap();
        assert_eq!(decoder("zstd").decode(&encoder.finish().unwrap()), Err(DecodeError));
    }

    #[test]
    fn broken_data_and_unknown_codings_are_unreadable() {
        for encoding in ["gzip", "deflate", "br", "zstd", "gzip, br"] {
            let result = decoder(encoding).decode(b"\xff\xffthis is not packed at all, not at all");
            assert_eq!(result, Err(DecodeError), "{encoding}");
        }
        for encoding in ["lz4", "gzip, compress", "gzip,gzip,gzip,gzip"] {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_ENCODING, header::HeaderValue::from_static(encoding));
            assert!(Decoder::of(&headers).is_err(), "{encoding}");
        }
    }
}
