//! Text forms, with the session's style.

use super::cast::{cast, reg_input};
use super::context::EvalContext;
use super::settings::Settings;
use super::ty::CastContext;
use telesto_sql_types::array_text::array_text;
use telesto_sql_types::datetime::TimeZone;
use telesto_sql_types::error::Result;
use telesto_sql_types::text::TextStyle;
use telesto_sql_types::{ArrayValue, Datum, SqlType};

impl Settings {
    /// Whether values become text in the form that they have where nothing is set. All digits of a
    /// float are all, however many more are asked for.
    #[must_use]
    pub fn writes_plainly(&self) -> bool {
        self.bytea_hex && self.extra_float_digits >= 1 && !self.interval_iso()
    }

    /// These, but values become text in the form that they have where nothing is set.
    #[must_use]
    pub fn writing_plainly(mut self) -> Self {
        let built_in = Self::default();
        self.bytea_hex = built_in.bytea_hex;
        self.extra_float_digits = built_in.extra_float_digits;
        self.others.remove("intervalstyle");
        self
    }
}

/// How the session writes values as text.
pub fn style(context: &EvalContext<'_>) -> TextStyle {
    TextStyle {
        zone: TimeZone::parse(&context.settings.time_zone, false).unwrap_or_default(),
        now_micros: context.exec.map_or(0, |e| e.transaction_micros()),
        bytea_hex: context.settings.bytea_hex,
        extra_float_digits: context.settings.extra_float_digits,
        interval_iso: context.settings.interval_iso(),
    }
}

/// The value of a text form; the type's modifier is not applied.
pub fn input(shown: &str, ty: &SqlType, context: &EvalContext<'_>) -> Result<Datum> {
    let shown = super::stored_literals::reading(shown, ty, context)?;
    if ty.is_reg() {
        return reg_input(shown, ty, context);
    }
    if ty.with_names().is_some() {
        let names = SqlType::Text.array_of();
        let found = Datum::from_text(shown, &names, &style(context))?;
        return cast(found, &names, ty, CastContext::Explicit, context);
    }
    Datum::from_text(shown, &ty.without_modifier(), &style(context))
}

/// The text form of a value; reg* types show names.
pub fn output(value: &Datum, ty: &SqlType, context: &EvalContext<'_>) -> Result<String> {
    let number = |oid: u32| if oid == 0 { "-".to_owned() } else { oid.to_string() };
    if let (Datum::Oid(oid), SqlType::RegType) = (value, ty) {
        let (catalog, settings) = (context.catalog, context.settings);
        if let Some(shown) = crate::shown_names::user_type_name(catalog, settings, *oid) {
            return Ok(shown);
        }
        if let Some(name) = telesto_sql_catalog::builtin::pseudo_types::name(*oid) {
            return Ok(name.to_owned());
        }
        return Ok(context
            .catalog
            .type_of_oid(*oid)
            .map_or_else(|| number(*oid), |ty| ty.to_string().replace("bpchar", "character")));
    }
    if let (Datum::Oid(oid), SqlType::RegClass) = (value, ty)
        && let Some(name) =
            crate::shown_names::relation_name(context.catalog, context.settings, *oid)
    {
        return Ok(name);
    }
    if let (Datum::Oid(oid), true) = (value, ty.is_reg()) {
        let name = crate::shown_names::reg_name(*oid, ty, context.catalog);
        return Ok(name.unwrap_or_else(|| oid.to_string()));
    }
    if let (Datum::Array(array), Some(_)) = (value, ty.with_names()) {
        let names = array.elements.iter().map(|element| match element {
            Datum::Null => Ok(Datum::Null),
            element => output(element, &array.element, context).map(Datum::text),
        });
        let named = ArrayValue {
            element: SqlType::Text,
            dimensions: array.dimensions.clone(),
            elements: names.collect::<Result<_>>()?,
        };
        return Ok(array_text(&named, &style(context)));
    }
    Ok(value.to_text(ty, &style(context)))
}

/// The text form of a jsonb value.
pub fn jsonb_text(value: &serde_json::Value) -> String {
    telesto_sql_types::json::jsonb_text(value)
}
