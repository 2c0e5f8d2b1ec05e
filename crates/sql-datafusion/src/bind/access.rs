//! `array[i]`, `array[low:high]`, `json['key']`, and a character of a name.
//!
//! # Invariants
//! One slice among the brackets behind an array makes slices of all, as in PostgreSQL: `a[1:2][2]`
//! is `a[1:2][1:2]`.

use datafusion::sql::sqlparser::ast;

use super::scope::{Scope, fold};
use super::select::Output;
use super::{Binder, Typed};
use crate::arrays::ArrayWork;
use crate::fault;
use crate::udf;
use telesto_sql_expr::{ROW_FIELD, field_names, field_place};
use telesto_sql_types::SqlType;
use telesto_sql_types::error::Result;

impl Binder<'_> {
    /// A value behind subscripts.
    pub(super) fn access(
        &self,
        root: &ast::Expr,
        chain: &[ast::AccessExpr],
        scope: &Scope<'_>,
    ) -> Result<Typed> {
        if let Some((field, rest)) = self.field_of_relation(root, chain, scope) {
            return match rest {
                [] => self.expr(&field, scope),
                rest => self.access(&field, rest, scope),
            };
        }
        let mut typed = self.expr(root, scope)?;
        let mut places = Vec::new();
        for step in chain {
            match step {
                ast::AccessExpr::Subscript(ast::Subscript::Index { index }) => {
                    let index = self.expr(index, scope)?;
                    if typed.ty.element_type().is_some() {
                        places.push(Place::At(self.position(index)?));
                        continue;
                    }
                    typed = match typed.ty {
                        SqlType::Name => self.character(typed, index)?,
                        _ => self.subscript(typed, index)?,
                    };
                }
                ast::AccessExpr::Subscript(ast::Subscript::Slice {
                    lower_bound,
                    upper_bound,
                    stride: None,
                }) => {
                    // A bound that is left out is the array's own.
                    let bound = |given: &Option<ast::Expr>, end: i32| match given {
                        Some(expr) => self.position(self.expr(expr, scope)?),
                        None => Ok(Typed::int(end)),
                    };
                    let low = bound(lower_bound, i32::MIN)?;
                    places.push(Place::Between(low, bound(upper_bound, i32::MAX)?));
                }
                ast::AccessExpr::Dot(ast::Expr::Identifier(name)) => {
                    typed = self.field(within(typed, std::mem::take(&mut places))?, &fold(name))?;
                }
                _ => return Err(fault::unsupported("this kind of field access")),
            }
        }
        within(typed, places)
    }

    /// The field `name` of a composite value or record, as the text that no setting changes, cast
    /// to its type.
    pub(super) fn field(&self, row: Typed, name: &str) -> Result<Typed> {
        let (at, ty) = field_place(&row.ty, name)?;
        let place = Typed::int(i32::try_from(at).unwrap_or(i32::MAX));
        let text = self.call(ROW_FIELD, vec![row, place])?;
        self.cast(text, &ty)
    }

    /// `(row).*`: a column for each field.
    pub(super) fn fields(
        &self,
        row: &ast::Expr,
        scope: &Scope<'_>,
        out: &mut Vec<Output>,
    ) -> Result<()> {
        if let ast::Expr::Nested(inner) = row
            && let ast::Expr::Identifier(relation) = &**inner
            && scope.resolve(None, &fold(relation)).is_err()
        {
            let name = ast::ObjectName::from(vec![relation.clone()]);
            let kind = ast::SelectItemQualifiedWildcardKind::ObjectName(name);
            let star = ast::SelectItem::QualifiedWildcard(kind, Default::default());
            return self.outputs(&star, scope, out);
        }
        let row = self.expr(row, scope)?;
        let Some(names) = field_names(&row.ty) else {
            return Err(fault::new(
                "42809",
                format!("type {} is not composite", row.ty.without_modifier()),
            ));
        };
        for name in names {
            let field = self.field(row.clone(), &name)?;
            out.push(Output {
                name,
                expr: field.expr,
                ty: field.ty,
                origin: None,
                parameter: None,
            });
        }
        Ok(())
    }

    /// `(t).a` of a relation `t`: the column, and what stands behind it.
    fn field_of_relation<'c>(
        &self,
        root: &ast::Expr,
        chain: &'c [ast::AccessExpr],
        scope: &Scope<'_>,
    ) -> Option<(ast::Expr, &'c [ast::AccessExpr])> {
        let ast::Expr::Nested(inner) = root else { return None };
        let ast::Expr::Identifier(relation) = &**inner else { return None };
        let [ast::AccessExpr::Dot(ast::Expr::Identifier(name)), rest @ ..] = chain else {
            return None;
        };
        if scope.resolve(None, &fold(relation)).is_ok() {
            return None;
        }
        Some((ast::Expr::CompoundIdentifier(vec![relation.clone(), name.clone()]), rest))
    }

    /// `name[0]`: a name is an array of "char" that counts from 0; behind its end is nothing.
    fn character(&self, name: Typed, index: Typed) -> Result<Typed> {
        let text = self.cast(name, &SqlType::Text)?;
        let place = self.binary("+", index, Typed::int(1))?;
        let found = self.call("substr", vec![text, place.clone(), Typed::int(1)])?;
        let known = self.binary(">", place, Typed::int(0))?.expr;
        let known = known.and(self.binary("<>", found.clone(), Typed::text(String::new()))?.expr);
        let found = self.cast(found, &SqlType::InternalChar)?;
        let nothing = Self::null_of(&SqlType::InternalChar)?;
        let chosen = datafusion::logical_expr::when(known, found.expr)
            .otherwise(nothing)
            .map_err(fault::from_datafusion)?;
        Ok(Typed::of(chosen, SqlType::InternalChar))
    }
}

/// What stands in brackets behind an array.
enum Place {
    At(Typed),
    Between(Typed, Typed),
}

/// The element of an array in these places, or the slice between these bounds; the value itself
/// when there are none.
fn within(array: Typed, places: Vec<Place>) -> Result<Typed> {
    if places.is_empty() {
        return Ok(array);
    }
    let Some(element) = array.ty.element_type().cloned() else {
        let message = format!(
            "cannot subscript type {} because it does not support subscripting",
            array.ty.without_modifier()
        );
        return Err(fault::new("42804", message));
    };
    let slice = places.iter().any(|place| matches!(place, Place::Between(..)));
    let mut args = vec![array.expr];
    for place in places {
        match place {
            Place::At(at) => {
                args.extend(slice.then(|| Typed::int(1).expr));
                args.push(at.expr);
            }
            Place::Between(low, high) => args.extend([low.expr, high.expr]),
        }
    }
    let (work, ty) = match slice {
        true => (ArrayWork::Slice, element.array_of()),
        false => (ArrayWork::Element, element),
    };
    let mut types = vec![SqlType::Int4; args.len()];
    types[0] = array.ty;
    Ok(Typed::of(udf::array_call(work, types, ty.clone()).call(args), ty))
}
