//! What browsers do, and how often.
//!
//! # Invariants
//! The weights of a mix add up to 10,000: they are hundredths of a percent. TPC-W's are those of
//! its three mixes.

/// One thing a browser does: a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the names are TPC-W's, then the seeds'")]
pub enum Interaction {
    Home,
    NewProducts,
    BestSellers,
    ProductDetail,
    SearchRequest,
    SearchResults,
    ShoppingCart,
    CustomerRegistration,
    BuyRequest,
    BuyConfirm,
    OrderInquiry,
    OrderDisplay,
    AdminRequest,
    AdminConfirm,
    /// Seed 000: a customer, six products looked for, three of them ordered.
    Customer,
    /// Seed 002, one join: a book and its author.
    JoinAuthor,
    /// Seed 002, one join: an order and its lines.
    JoinLines,
    /// Seed 002, two joins: a customer by name, the address, the country.
    JoinCountry,
    /// Seed 002, two joins: an order, its lines, their books.
    JoinBooks,
    /// Seed 002, an update with indexes: a new cart with a book in it.
    NewCart,
    /// Seed 002, an update without: another price.
    Price,
}

use Interaction as I;

impl Interaction {
    /// All.
    pub const ALL: [Self; 21] = [
        I::Home,
        I::NewProducts,
        I::BestSellers,
        I::ProductDetail,
        I::SearchRequest,
        I::SearchResults,
        I::ShoppingCart,
        I::CustomerRegistration,
        I::BuyRequest,
        I::BuyConfirm,
        I::OrderInquiry,
        I::OrderDisplay,
        I::AdminRequest,
        I::AdminConfirm,
        I::Customer,
        I::JoinAuthor,
        I::JoinLines,
        I::JoinCountry,
        I::JoinBooks,
        I::NewCart,
        I::Price,
    ];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            I::Home => "home",
            I::NewProducts => "new products",
            I::BestSellers => "best sellers",
            I::ProductDetail => "product detail",
            I::SearchRequest => "search request",
            I::SearchResults => "search results",
            I::ShoppingCart => "shopping cart",
            I::CustomerRegistration => "customer registration",
            I::BuyRequest => "buy request",
            I::BuyConfirm => "buy confirm",
            I::OrderInquiry => "order inquiry",
            I::OrderDisplay => "order display",
            I::AdminRequest => "admin request",
            I::AdminConfirm => "admin confirm",
            I::Customer => "customer transaction",
            I::JoinAuthor => "join: book, author",
            I::JoinLines => "join: order, lines",
            I::JoinCountry => "join: customer, address, country",
            I::JoinBooks => "join: order, lines, books",
            I::NewCart => "update: new cart",
            I::Price => "update: price",
        }
    }

    /// Whether it writes.
    pub fn writes(self) -> bool {
        matches!(
            self,
            I::ShoppingCart
                | I::BuyRequest
                | I::BuyConfirm
                | I::AdminConfirm
                | I::Customer
                | I::NewCart
                | I::Price
        )
    }
}

/// How often each interaction comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mix {
    /// TPC-W: 95 % browsing, 5 % ordering.
    Browsing,
    /// TPC-W's principal mix: 80 % and 20 %.
    Shopping,
    /// TPC-W: 50 % and 50 %.
    Ordering,
    /// Seed 000's customer transaction only.
    Customer,
    /// Seed 002's: 82 % joins (a third of them of length one, the others of two), 18 % updates, of
    /// which 84 % change indexes.
    Joins,
}

const BROWSING: [(I, u32); 14] = [
    (I::Home, 2900),
    (I::NewProducts, 1100),
    (I::BestSellers, 1100),
    (I::ProductDetail, 2100),
    (I::SearchRequest, 1200),
    (I::SearchResults, 1100),
    (I::ShoppingCart, 200),
    (I::CustomerRegistration, 82),
    (I::BuyRequest, 75),
    (I::BuyConfirm, 69),
    (I::OrderInquiry, 30),
    (I::OrderDisplay, 25),
    (I::AdminRequest, 10),
    (I::AdminConfirm, 9),
];
const SHOPPING: [(I, u32); 14] = [
    (I::Home, 1600),
    (I::NewProducts, 500),
    (I::BestSellers, 500),
    (I::ProductDetail, 1700),
    (I::SearchRequest, 2000),
    (I::SearchResults, 1700),
    (I::ShoppingCart, 1160),
    (I::CustomerRegistration, 300),
    (I::BuyRequest, 260),
    (I::BuyConfirm, 120),
    (I::OrderInquiry, 75),
    (I::OrderDisplay, 66),
    (I::AdminRequest, 10),
    (I::AdminConfirm, 9),
];
const ORDERING: [(I, u32); 14] = [
    (I::Home, 912),
    (I::NewProducts, 46),
    (I::BestSellers, 46),
    (I::ProductDetail, 1235),
    (I::SearchRequest, 1453),
    (I::SearchResults, 1308),
    (I::ShoppingCart, 1353),
    (I::CustomerRegistration, 1286),
    (I::BuyRequest, 1273),
    (I::BuyConfirm, 1018),
    (I::OrderInquiry, 25),
    (I::OrderDisplay, 22),
    (I::AdminRequest, 12),
    (I::AdminConfirm, 11),
];
const CUSTOMER: [(I, u32); 1] = [(I::Customer, 10_000)];
/// 82 % · 33 % = 27.06, 82 % · 67 % = 54.94, 18 % · 84 % = 15.12; a join reads about 4.9 records,
/// as in the seed.
const JOINS: [(I, u32); 6] = [
    (I::JoinAuthor, 1353),
    (I::JoinLines, 1353),
    (I::JoinCountry, 2088),
    (I::JoinBooks, 3406),
    (I::NewCart, 1512),
    (I::Price, 288),
];

impl Mix {
    /// All.
    pub const ALL: [Self; 5] =
        [Self::Browsing, Self::Shopping, Self::Ordering, Self::Customer, Self::Joins];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Browsing => "browsing",
            Self::Shopping => "shopping",
            Self::Ordering => "ordering",
            Self::Customer => "customer",
            Self::Joins => "joins",
        }
    }

    /// The mix of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mix| mix.name() == name)
    }

    /// Interactions and their weights, hundredths of a percent.
    pub fn weights(self) -> &'static [(Interaction, u32)] {
        match self {
            Self::Browsing => &BROWSING,
            Self::Shopping => &SHOPPING,
            Self::Ordering => &ORDERING,
            Self::Customer => &CUSTOMER,
            Self::Joins => &JOINS,
        }
    }

    /// The interaction at `point` of 10,000.
    pub fn at(self, point: u32) -> Interaction {
        let mut left = point % 10_000;
        for (interaction, weight) in self.weights() {
            match left.checked_sub(*weight) {
                None => return *interaction,
                Some(rest) => left = rest,
            }
        }
        // The weights add up to 10,000 (tested), so the loop has returned.
        self.weights()[0].0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_add_up_and_each_point_has_its_interaction() {
        for mix in Mix::ALL {
            let sum: u32 = mix.weights().iter().map(|(_, weight)| weight).sum();
            assert_eq!(sum, 10_000, "{mix:?}");
            for (interaction, weight) in mix.weights() {
                let hits = (0..10_000).filter(|point| mix.at(*point) == *interaction).count();
                assert_eq!(hits, *weight as usize, "{mix:?} {interaction:?}");
            }
        }
    }

    #[test]
    fn tpcws_mixes_browse_as_much_as_they_should() {
        let browse = [
            I::Home,
            I::NewProducts,
            I::BestSellers,
            I::ProductDetail,
            I::SearchRequest,
            I::SearchResults,
        ];
        for (mix, percent) in [(Mix::Browsing, 95), (Mix::Shopping, 80), (Mix::Ordering, 50)] {
            let weights = mix.weights().iter().filter(|(i, _)| browse.contains(i));
            assert_eq!(weights.map(|(_, weight)| weight).sum::<u32>(), percent * 100, "{mix:?}");
        }
    }

    #[test]
    fn joins_are_as_in_the_seed() {
        let share = |list: &[I]| -> u32 {
            Mix::Joins.weights().iter().filter(|(i, _)| list.contains(i)).map(|(_, w)| w).sum()
        };
        let joins = share(&[I::JoinAuthor, I::JoinLines, I::JoinCountry, I::JoinBooks]);
        assert_eq!(joins, 8_200);
        assert_eq!(share(&[I::JoinAuthor, I::JoinLines]) * 100 / joins, 33);
        assert_eq!(share(&[I::NewCart]) * 100 / (10_000 - joins), 84);
    }
}
