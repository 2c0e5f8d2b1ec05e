//! Backend messages, appended to one output buffer.
//!
//! # Purpose
//! Messages of the startup and the rare ones go through `pgwire`'s encoder. Those sent for every
//! statement or row are written in place: no intermediate message, no copy of a value.
//!
//! # Invariants
//! Every message's length field equals its body; a message is either whole in the buffer or not in
//! it.
//!
//! # Limits
//! Texts in errors and notices are cut at [`MAX_ERROR_TEXT_BYTES`] and freed of NUL bytes.

use bytes::{BufMut as _, BytesMut};
use pgwire::messages::PgWireBackendMessage;
use pgwire::messages::response::{ErrorResponse, NoticeResponse, NotificationResponse};
use telesto_sql::Notification;

/// Longest text of an error field, bytes.
pub const MAX_ERROR_TEXT_BYTES: usize = 16 * 1024;

/// Transaction state as ReadyForQuery tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Not in a transaction block.
    Idle,
    /// In a transaction block.
    Transaction,
    /// In a failed transaction block.
    Failed,
}

impl Status {
    fn byte(self) -> u8 {
        match self {
            Self::Idle => b'I',
            Self::Transaction => b'T',
            Self::Failed => b'E',
        }
    }
}

/// One column of a RowDescription.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field<'a> {
    /// Name.
    pub name: &'a str,
    /// OID of the table it comes from, or 0.
    pub table: u32,
    /// Attribute number in that table, or 0.
    pub attribute: i16,
    /// OID of its type.
    pub type_oid: u32,
    /// `pg_type.typlen`.
    pub type_length: i16,
    /// `pg_attribute.atttypmod`, -1 for none.
    pub type_modifier: i32,
    /// 0 text, 1 binary.
    pub format: i16,
}

/// What the server has to say and has not sent yet.
#[derive(Debug, Default)]
pub struct Output {
    bytes: BytesMut,
}

impl Output {
    /// Bytes waiting.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The buffer, for the socket to drain.
    pub fn buffer(&mut self) -> &mut BytesMut {
        &mut self.bytes
    }

    /// Forgets everything after the first `length` bytes: takes back messages of a statement that
    /// is executed again.
    pub fn truncate(&mut self, length: usize) {
        self.bytes.truncate(length);
    }

    /// A message through `pgwire`'s encoder. One that it refuses is dropped and reported.
    pub fn message(&mut self, message: &PgWireBackendMessage) {
        let start = self.bytes.len();
        if let Err(error) = message.encode(&mut self.bytes) {
            self.bytes.truncate(start);
            tracing::error!(%error, "a reply could not be encoded");
        }
    }

    fn framed(&mut self, kind: u8, write: impl FnOnce(&mut BytesMut)) {
        self.bytes.put_u8(kind);
        let start = self.bytes.len();
        self.bytes.put_u32(0);
        write(&mut self.bytes);
        let length = u32::try_from(self.bytes.len() - start).unwrap_or(u32::MAX);
        self.bytes[start..start + 4].copy_from_slice(&length.to_be_bytes());
    }

    /// ParseComplete.
    pub fn parse_complete(&mut self) {
        self.bytes.put_slice(b"1\0\0\0\x04");
    }

    /// BindComplete.
    pub fn bind_complete(&mut self) {
        self.bytes.put_slice(b"2\0\0\0\x04");
    }

    /// CloseComplete.
    pub fn close_complete(&mut self) {
        self.bytes.put_slice(b"3\0\0\0\x04");
    }

    /// NoData.
    pub fn no_data(&mut self) {
        self.bytes.put_slice(b"n\0\0\0\x04");
    }

    /// PortalSuspended.
    pub fn portal_suspended(&mut self) {
        self.bytes.put_slice(b"s\0\0\0\x04");
    }

    /// EmptyQueryResponse.
    pub fn empty_query(&mut self) {
        self.bytes.put_slice(b"I\0\0\0\x04");
    }

    /// CopyDone.
    pub fn copy_done(&mut self) {
        self.bytes.put_slice(b"c\0\0\0\x04");
    }

    /// ReadyForQuery.
    pub fn ready(&mut self, status: Status) {
        self.bytes.put_slice(&[b'Z', 0, 0, 0, 5, status.byte()]);
    }

    /// CommandComplete.
    pub fn command_complete(&mut self, tag: &str) {
        self.framed(b'C', |out| cstring(out, tag));
    }

    /// CommandComplete of a statement that gave rows: with their number, but for statements whose
    /// tag has none.
    pub fn rows_complete(&mut self, tag: &str, rows: u64) {
        match tag {
            "SHOW" | "EXPLAIN" => self.command_complete(tag),
            tag => self.command_complete(&format!("{tag} {rows}")),
        }
    }

    /// ParameterStatus.
    pub fn parameter_status(&mut self, name: &str, value: &str) {
        self.framed(b'S', |out| {
            cstring(out, name);
            cstring(out, value);
        });
    }

    /// ParameterDescription.
    pub fn parameter_description(&mut self, oids: impl ExactSizeIterator<Item = u32>) {
        self.framed(b't', |out| {
            out.put_u16(u16::try_from(oids.len()).unwrap_or(u16::MAX));
            for oid in oids.take(usize::from(u16::MAX)) {
                out.put_u32(oid);
            }
        });
    }

    /// RowDescription.
    pub fn row_description<'a>(&mut self, fields: impl ExactSizeIterator<Item = Field<'a>>) {
        self.framed(b'T', |out| {
            out.put_u16(u16::try_from(fields.len()).unwrap_or(u16::MAX));
            for field in fields.take(usize::from(u16::MAX)) {
                cstring(out, field.name);
                out.put_u32(field.table);
                out.put_i16(field.attribute);
                out.put_u32(field.type_oid);
                out.put_i16(field.type_length);
                out.put_i32(field.type_modifier);
                out.put_i16(field.format);
            }
        });
    }

    /// DataRow of `columns` values, each written by `write` (column number, buffer); `write` says
    /// whether the value is NULL and has then written nothing.
    ///
    /// # Errors
    /// Those of `write`; nothing is then in the buffer.
    pub fn data_row<E>(
        &mut self,
        columns: usize,
        mut write: impl FnMut(usize, &mut BytesMut) -> Result<bool, E>,
    ) -> Result<(), E> {
        let start = self.bytes.len();
        self.bytes.put_u8(b'D');
        self.bytes.put_u32(0);
        self.bytes.put_u16(u16::try_from(columns).unwrap_or(u16::MAX));
        for column in 0..columns {
            let at = self.bytes.len();
            self.bytes.put_i32(-1);
            match write(column, &mut self.bytes) {
                Ok(true) => {}
                Ok(false) => {
                    let length = u32::try_from(self.bytes.len() - at - 4).unwrap_or(u32::MAX);
                    self.bytes[at..at + 4].copy_from_slice(&length.to_be_bytes());
                }
                Err(error) => {
                    self.bytes.truncate(start);
                    return Err(error);
                }
            }
        }
        let length = u32::try_from(self.bytes.len() - start - 1).unwrap_or(u32::MAX);
        self.bytes[start + 1..start + 5].copy_from_slice(&length.to_be_bytes());
        Ok(())
    }

    /// CopyInResponse (`G`) or CopyOutResponse (`H`): every column in `format`.
    pub fn copy_response(&mut self, kind: u8, binary: bool, columns: usize) {
        self.framed(kind, |out| {
            out.put_u8(u8::from(binary));
            let columns = u16::try_from(columns).unwrap_or(u16::MAX);
            out.put_u16(columns);
            for _ in 0..columns {
                out.put_u16(u16::from(binary));
            }
        });
    }

    /// CopyData.
    pub fn copy_data(&mut self, data: &[u8]) {
        self.framed(b'd', |out| out.put_slice(data));
    }

    /// ErrorResponse.
    pub fn error(&mut self, fields: Vec<(u8, String)>) {
        let response = ErrorResponse::new(clean(fields));
        self.message(&PgWireBackendMessage::ErrorResponse(response));
    }

    /// NotificationResponse.
    pub fn notification(&mut self, notification: &Notification) {
        let Notification { pid, channel, payload } = notification;
        let response = NotificationResponse::new(*pid, channel.clone(), payload.clone());
        self.message(&PgWireBackendMessage::NotificationResponse(response));
    }

    /// NoticeResponse.
    pub fn notice(&mut self, fields: Vec<(u8, String)>) {
        let response = NoticeResponse::new(clean(fields));
        self.message(&PgWireBackendMessage::NoticeResponse(response));
    }
}

fn cstring(out: &mut BytesMut, text: &str) {
    // A NUL would end the text early and put the message out of step.
    for part in text.as_bytes().split(|byte| *byte == 0) {
        out.put_slice(part);
    }
    out.put_u8(0);
}

fn clean(mut fields: Vec<(u8, String)>) -> Vec<(u8, String)> {
    for (_, text) in &mut fields {
        text.retain(|c| c != '\0');
        if text.len() > MAX_ERROR_TEXT_BYTES {
            let cut = (0..=MAX_ERROR_TEXT_BYTES).rev().find(|at| text.is_char_boundary(*at));
            text.truncate(cut.unwrap_or(0));
            text.push('…');
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use pgwire::messages::{DecodeContext, ProtocolVersion};

    use super::*;

    fn decode(output: &mut Output) -> PgWireBackendMessage {
        let mut context = DecodeContext::new(ProtocolVersion::PROTOCOL3_0);
        context.awaiting_frontend_ssl = false;
        context.awaiting_frontend_startup = false;
        let message = PgWireBackendMessage::decode(output.buffer(), &context);
        message.expect("decodes").expect("is whole")
    }

    #[test]
    fn hand_written_messages_decode_as_what_they_are() {
        let mut out = Output::default();
        out.command_complete("INSERT 0 1");
        out.ready(Status::Failed);
        out.parameter_description([23u32, 25].into_iter());
        let field = Field {
            name: "a\0b",
            table: 7,
            attribute: 1,
            type_oid: 23,
            type_length: 4,
            type_modifier: -1,
            format: 1,
        };
        out.row_description([field].into_iter());
        let row: Result<(), ()> = out.data_row(2, |column, bytes| {
            bytes.put_slice(if column == 0 { b"xy" } else { b"" });
            Ok(column == 1)
        });
        row.expect("written");
        out.copy_response(b'G', true, 2);
        out.copy_data(b"abc");
        for expected in [
            "CommandComplete(CommandComplete { tag: \"INSERT 0 1\" })",
            "ReadyForQuery(ReadyForQuery { status: Error })",
            "ParameterDescription(ParameterDescription { types: [23, 25] })",
            "RowDescription(RowDescription { fields: [FieldDescription { name: \"ab\", table_id: 7, column_id: 1, type_id: 23, type_size: 4, type_modifier: -1, format_code: 1 }] })",
            "DataRow(DataRow { data: b\"\\0\\0\\0\\x02xy\\xff\\xff\\xff\\xff\", field_count: 2 })",
            "CopyInResponse(CopyInResponse { format: 1, columns: 2, column_formats: [1, 1] })",
            "CopyData(CopyData { data: b\"abc\" })",
        ] {
            assert_eq!(format!("{:?}", decode(&mut out)), expected);
        }
        assert!(out.is_empty());
    }

    #[test]
    fn data_row_whose_value_fails_leaves_nothing_behind() {
        let mut out = Output::default();
        out.ready(Status::Idle);
        let before = out.len();
        let row = out.data_row(1, |_, bytes| {
            bytes.put_slice(b"half");
            Err("no")
        });
        assert_eq!((row, out.len()), (Err("no"), before));
    }

    #[test]
    fn error_with_long_text_and_nul_is_cut_and_cleaned() {
        let mut out = Output::default();
        out.error(vec![(b'M', format!("a\0{}", "é".repeat(MAX_ERROR_TEXT_BYTES)))]);
        let PgWireBackendMessage::ErrorResponse(response) = decode(&mut out) else {
            panic!("not an error")
        };
        assert!(response.fields[0].1.starts_with("aé"));
        assert!(response.fields[0].1.len() <= MAX_ERROR_TEXT_BYTES + 4);
    }
}
