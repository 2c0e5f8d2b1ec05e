//! The parts of bound expressions; moving their columns to other places of the row, and putting a
//! value where it is named.

use super::bound::{Expr, Node};
use super::context::EvalContext;
use telesto_sql_types::Datum;
use telesto_sql_types::error::Result;

impl Expr {
    /// Replaces the position of every column by what `to` gives for it.
    pub fn remap(&mut self, to: &dyn Fn(usize) -> usize) {
        if let Node::Column(at) = &mut self.node {
            *at = to(*at);
        }
        self.each_child_mut(&mut |child| child.remap(to));
    }

    /// The value of an expression in which [`Node::Held`] of that number stands for `value`, which
    /// is computed first, and once.
    ///
    /// # Errors
    /// Those of either.
    pub(super) fn with_held(
        &self,
        number: u32,
        value: &Self,
        row: &[Datum],
        context: &EvalContext<'_>,
    ) -> Result<Datum> {
        let held = Self::constant(value.eval(row, context)?, value.ty.clone());
        self.given(number, &held).eval(row, context)
    }

    /// A copy in which `value` stands where [`Node::Held`] of that number did.
    #[must_use]
    pub fn given(&self, number: u32, value: &Self) -> Self {
        let mut whole = self.clone();
        whole.give(number, value);
        whole
    }

    fn give(&mut self, number: u32, value: &Self) {
        if matches!(self.node, Node::Held(held) if held == number) {
            self.node = value.node.clone();
        }
        self.each_child_mut(&mut |child| child.give(number, value));
    }

    /// Calls `visit` for the expressions this one is made of.
    pub(super) fn each_child(&self, visit: &mut dyn FnMut(&Self)) {
        match &self.node {
            Node::Const(_) | Node::Column(_) | Node::Param(_) | Node::Held(_) => {}
            Node::And(items)
            | Node::Or(items)
            | Node::Coalesce(items)
            | Node::Extreme(_, items)
            | Node::Call(_, items, _)
            | Node::Array(items, _) => items.iter().for_each(visit),
            Node::Not(a) | Node::IsNull(_, a) | Node::IsTruth(_, _, a) | Node::Cast(a, _) => {
                visit(a)
            }
            Node::Compare(_, a, b)
            | Node::Distinct(_, a, b)
            | Node::NullIf(a, b)
            | Node::Once(_, a, b)
            | Node::Quantified(a, _, b, _)
            | Node::QuantifiedCall(a, _, b, _) => {
                visit(a);
                visit(b);
            }
            Node::InList(a, list, _) | Node::Subscript(a, list) => {
                visit(a);
                list.iter().for_each(visit);
            }
            Node::RowCompare(_, pairs) | Node::Case(pairs, None) => {
                for (a, b) in pairs {
                    visit(a);
                    visit(b);
                }
            }
            Node::Case(pairs, Some(otherwise)) => {
                for (a, b) in pairs {
                    visit(a);
                    visit(b);
                }
                visit(otherwise);
            }
            Node::Slice(a, bounds) => {
                visit(a);
                bounds.iter().flat_map(|(low, high)| low.iter().chain(high)).for_each(|e| visit(e));
            }
        }
    }

    /// Calls `visit` for the expressions this one is made of.
    pub fn each_child_mut(&mut self, visit: &mut dyn FnMut(&mut Self)) {
        let mut each = |child: &mut Self| visit(child);
        match &mut self.node {
            Node::Const(_) | Node::Column(_) | Node::Param(_) | Node::Held(_) => {}
            Node::And(items)
            | Node::Or(items)
            | Node::Coalesce(items)
            | Node::Extreme(_, items)
            | Node::Call(_, items, _)
            | Node::Array(items, _) => items.iter_mut().for_each(&mut each),
            Node::Not(a) | Node::IsNull(_, a) | Node::IsTruth(_, _, a) | Node::Cast(a, _) => {
                each(a);
            }
            Node::Compare(_, a, b)
            | Node::Distinct(_, a, b)
            | Node::NullIf(a, b)
            | Node::Once(_, a, b)
            | Node::Quantified(a, _, b, _)
            | Node::QuantifiedCall(a, _, b, _) => {
                each(a);
                each(b);
            }
            Node::InList(a, list, _) | Node::Subscript(a, list) => {
                each(a);
                list.iter_mut().for_each(&mut each);
            }
            Node::RowCompare(_, pairs) => {
                for (a, b) in pairs {
                    each(a);
                    each(b);
                }
            }
            Node::Case(pairs, otherwise) => {
                for (a, b) in pairs {
                    each(a);
                    each(b);
                }
                otherwise.iter_mut().for_each(|e| each(e));
            }
            Node::Slice(a, bounds) => {
                each(a);
                for (low, high) in bounds {
                    low.iter_mut().chain(high).for_each(|e| each(e));
                }
            }
        }
    }
}
