//! Casts that give the same whenever they are computed.
//!
//! # Invariants
//! Others are constant within a statement only: they read the catalog (`regclass`), the session's
//! settings (moments with a zone), or the time (`'now'::text::timestamp`, also inside of an array,
//! a range or a row). What is not known to give the same does not.

use telesto_sql_types::SqlType;

/// Whether a cast gives the same in every execution under settings that plan alike.
pub(crate) fn gives_the_same(from: &SqlType, to: &SqlType) -> bool {
    use SqlType as T;
    if let (T::Array(from), T::Array(to)) = (from, to) {
        return gives_the_same(from, to);
    }
    // A text may be a word for a moment.
    let reads_words = is_of_time(to) && !is_of_time(from);
    is_plain(from) && is_plain(to) && !reads_words
}

fn is_of_time(ty: &SqlType) -> bool {
    matches!(ty, SqlType::Date | SqlType::Time(_) | SqlType::Timestamp(_))
}

/// Types whose values say all that their texts do, and need nothing else to be read.
fn is_plain(ty: &SqlType) -> bool {
    use SqlType as T;
    matches!(
        ty,
        T::Bool
            | T::Int2
            | T::Int4
            | T::Int8
            | T::Numeric(_)
            | T::Float4
            | T::Float8
            | T::Text
            | T::Varchar(_)
            | T::Char(_)
            | T::InternalChar
            | T::Name
            | T::Bytea
            | T::Bit(_)
            | T::Varbit(_)
            | T::Uuid
            | T::Inet
            | T::Cidr
            | T::Interval
            | T::Json
            | T::Jsonb
    ) || is_of_time(ty)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_time_are_not_the_same() {
        use SqlType as T;
        let array = |ty: SqlType| T::Array(Box::new(ty));
        assert!(gives_the_same(&T::Text, &T::Int4));
        assert!(gives_the_same(&T::Timestamp(None), &T::Date));
        assert!(gives_the_same(&array(T::Int4), &array(T::Text)));
        for (from, to) in [
            (T::Text, T::Date),
            (T::Varchar(None), T::Timestamp(None)),
            (T::Text, T::TimestampTz(None)),
            (T::Timestamp(None), T::TimestampTz(None)),
            (T::Time(None), T::TimeTz(None)),
            (array(T::Text), array(T::Time(None))),
            (T::Text, array(T::Date)),
            (T::Text, T::RegClass),
        ] {
            assert!(!gives_the_same(&from, &to), "{from} to {to}");
        }
    }
}
