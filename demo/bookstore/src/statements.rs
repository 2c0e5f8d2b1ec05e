//! The SQL of the interactions, prepared once for a connection.
//!
//! # Invariants
//! Money is asked for in cents or as text, dates as text, so that a client needs no decimal type
//! and pages compare.
//!
//! # Limits
//! Searches by title and author are LIKE with a prefix: TPC-W leaves the kind of match to the
//! implementation.

use tokio_postgres::{Client, Statement};

use crate::error::{Error, Result};

macro_rules! statements {
    ($($(#[doc = $doc:literal])+ $name:ident: $sql:expr;)*) => {
        /// The prepared statements of one connection.
        pub struct Statements {
            $($(#[doc = $doc])+ pub $name: Statement,)*
        }

        /// Names and texts of the statements.
        pub const TEXTS: &[(&str, &str)] = &[$((stringify!($name), $sql),)*];

        impl Statements {
            /// Prepares them all.
            ///
            /// # Errors
            /// What the server refused, naming the statement.
            pub async fn prepare(client: &Client) -> Result<Self> {
                Ok(Self {
                    $($name: client.prepare($sql).await.map_err(|error| {
                        Error::database(concat!("preparing ", stringify!($name)), &error)
                    })?,)*
                })
            }
        }
    };
}

statements! {
    /// Home: who it is.
    customer_name: "SELECT c_fname, c_lname FROM customer WHERE c_id = $1";
    /// Home, search request, cart: the books related to one, five joins of length one.
    promotions: "SELECT i.i_id, a.i_id, a.i_thumbnail, b.i_id, b.i_thumbnail, c.i_id, c.i_thumbnail, d.i_id, d.i_thumbnail, e.i_id, e.i_thumbnail \
        FROM item i JOIN item a ON a.i_id = i.i_related1 JOIN item b ON b.i_id = i.i_related2 JOIN item c ON c.i_id = i.i_related3 \
        JOIN item d ON d.i_id = i.i_related4 JOIN item e ON e.i_id = i.i_related5 WHERE i.i_id = $1";
    /// New products: the newest fifty of a subject.
    new_products: "SELECT i_id, i_title, a_fname, a_lname FROM item JOIN author ON a_id = i_a_id WHERE i_subject = $1 \
        ORDER BY i_pub_date DESC, i_title LIMIT 50";
    /// Best sellers: the fifty of a subject that sold best in the newest 3,333 orders.
    best_sellers: "SELECT i_id, i_title, a_fname, a_lname, sum(ol_qty) AS sold FROM order_line JOIN item ON i_id = ol_i_id \
        JOIN author ON a_id = i_a_id WHERE ol_o_id > (SELECT max(o_id) - 3333 FROM orders) AND i_subject = $1 \
        GROUP BY i_id, i_title, a_fname, a_lname ORDER BY sold DESC, i_id LIMIT 50";
    /// Product detail.
    product_detail: "SELECT i_id, i_title, a_fname, a_lname, i_pub_date::text, i_publisher, i_subject, i_desc, i_image, i_cost::text, i_srp::text, \
        i_avail::text, i_stock, i_isbn, i_page, i_backing, i_dimensions FROM item JOIN author ON a_id = i_a_id WHERE i_id = $1";
    /// Search results by author.
    search_author: "SELECT i_id, i_title, a_fname, a_lname FROM author JOIN item ON i_a_id = a_id WHERE a_lname LIKE $1 ORDER BY i_title, i_id LIMIT 50";
    /// Search results by title.
    search_title: "SELECT i_id, i_title, a_fname, a_lname FROM item JOIN author ON a_id = i_a_id WHERE i_title LIKE $1 ORDER BY i_title, i_id LIMIT 50";
    /// Search results by subject.
    search_subject: "SELECT i_id, i_title, a_fname, a_lname FROM item JOIN author ON a_id = i_a_id WHERE i_subject = $1 ORDER BY i_title, i_id LIMIT 50";
    /// Shopping cart: a new one.
    new_cart: "INSERT INTO shopping_cart (sc_date) VALUES (CURRENT_TIMESTAMP) RETURNING sc_id";
    /// Shopping cart: what a book costs.
    price: "SELECT i_cost::text FROM item WHERE i_id = $1";
    /// Shopping cart: a book more.
    add_line: "INSERT INTO shopping_cart_line (scl_sc_id, scl_i_id, scl_qty, scl_cost) VALUES ($1, $2, $3, CAST($4::text AS numeric)) \
        ON CONFLICT (scl_sc_id, scl_i_id) DO UPDATE SET scl_qty = shopping_cart_line.scl_qty + EXCLUDED.scl_qty, scl_cost = EXCLUDED.scl_cost";
    /// Shopping cart: another number of a book.
    set_quantity: "UPDATE shopping_cart_line SET scl_qty = $3 WHERE scl_sc_id = $1 AND scl_i_id = $2";
    /// Shopping cart: a book less.
    remove_line: "DELETE FROM shopping_cart_line WHERE scl_sc_id = $1 AND scl_i_id = $2";
    /// Shopping cart, buy request, buy confirm: what is in it.
    cart_lines: "SELECT scl_i_id, scl_qty, (scl_cost * 100)::bigint, i_title, i_backing FROM shopping_cart_line JOIN item ON i_id = scl_i_id \
        WHERE scl_sc_id = $1 ORDER BY scl_i_id";
    /// Shopping cart: its sums.
    set_cart: "UPDATE shopping_cart SET sc_date = CURRENT_TIMESTAMP, sc_sub_total = CAST($2::text AS numeric), sc_tax = CAST($3::text AS numeric), \
        sc_ship_cost = CAST($4::text AS numeric), sc_total = CAST($5::text AS numeric) WHERE sc_id = $1";
    /// Customer registration, order inquiry: the name to log in with.
    user_name: "SELECT c_uname FROM customer WHERE c_id = $1";
    /// Buy request: a customer by name (a secondary key), address and country.
    login: "SELECT c_id, c_fname, c_lname, (c_discount * 100)::bigint, c_passwd, addr_street1, addr_street2, addr_city, addr_state, addr_zip, co_name \
        FROM customer JOIN address ON addr_id = c_addr_id JOIN country ON co_id = addr_co_id WHERE c_uname = $1";
    /// Buy request: the customer was here.
    seen: "UPDATE customer SET c_last_login = CURRENT_DATE, c_login = CURRENT_TIMESTAMP, c_expiration = CURRENT_TIMESTAMP + interval '2 hours' WHERE c_id = $1";
    /// Buy request: whose cart it is.
    own_cart: "UPDATE shopping_cart SET sc_c_id = $2 WHERE sc_id = $1";
    /// Buy request, new customer: a number.
    next_customer: "SELECT nextval(pg_get_serial_sequence('customer', 'c_id'))";
    /// Buy request, new customer: the row.
    new_customer: "INSERT INTO customer (c_id, c_uname, c_passwd, c_fname, c_lname, c_addr_id, c_phone, c_email, c_since, c_last_login, c_login, \
        c_expiration, c_discount, c_balance, c_ytd_pmt, c_birthdate, c_data) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, CURRENT_DATE, CURRENT_DATE, \
        CURRENT_TIMESTAMP, CURRENT_TIMESTAMP + interval '2 hours', CAST($9::text AS numeric), 0, 0, CAST($10::text AS date), $11)";
    /// Addresses: the country.
    country: "SELECT co_id FROM country WHERE co_name = $1";
    /// Addresses: one that is there already.
    find_address: "SELECT addr_id FROM address WHERE addr_street1 = $1 AND addr_street2 = $2 AND addr_city = $3 AND addr_state = $4 AND addr_zip = $5 \
        AND addr_co_id = $6 ORDER BY addr_id LIMIT 1";
    /// Addresses: a new one.
    new_address: "INSERT INTO address (addr_street1, addr_street2, addr_city, addr_state, addr_zip, addr_co_id) VALUES ($1, $2, $3, $4, $5, $6) RETURNING addr_id";
    /// Buy confirm, customer transaction: who buys.
    buyer: "SELECT c_fname, c_lname, (c_discount * 100)::bigint, c_addr_id, addr_co_id FROM customer JOIN address ON addr_id = c_addr_id WHERE c_id = $1";
    /// Buy confirm: the order.
    new_order: "INSERT INTO orders (o_c_id, o_date, o_sub_total, o_tax, o_total, o_ship_type, o_ship_date, o_bill_addr_id, o_ship_addr_id, o_status) \
        VALUES ($1, CURRENT_TIMESTAMP, CAST($2::text AS numeric), CAST($3::text AS numeric), CAST($4::text AS numeric), $5, \
        CURRENT_TIMESTAMP + $6::integer * interval '1 day', $7, $8, 'PENDING') RETURNING o_id";
    /// Buy confirm: its lines.
    new_line: "INSERT INTO order_line (ol_o_id, ol_id, ol_i_id, ol_qty, ol_discount, ol_comments) VALUES ($1, $2, $3, $4, CAST($5::text AS numeric), $6)";
    /// Buy confirm: TPC-W's stock, which is filled up by 21 when fewer than ten would be left.
    take_stock: "UPDATE item SET i_stock = CASE WHEN i_stock - $2::integer >= 10 THEN i_stock - $2::integer ELSE i_stock - $2::integer + 21 END WHERE i_id = $1";
    /// Buy confirm: the payment.
    new_payment: "INSERT INTO cc_xacts (cx_o_id, cx_type, cx_num, cx_name, cx_expire, cx_auth_id, cx_xact_amt, cx_xact_date, cx_co_id) \
        VALUES ($1, $2, $3, $4, CURRENT_DATE + $5::integer, $6, CAST($7::text AS numeric), CURRENT_TIMESTAMP, $8)";
    /// Buy confirm: the cart is empty again.
    empty_cart: "DELETE FROM shopping_cart_line WHERE scl_sc_id = $1";
    /// Order display: the newest order of a customer.
    last_order: "SELECT o_id FROM customer JOIN orders ON o_c_id = c_id WHERE c_uname = $1 AND c_passwd = $2 ORDER BY o_date DESC, o_id DESC LIMIT 1";
    /// Order display: the order, its customer, payment, addresses and countries.
    order_head: "SELECT o_id, c_fname, c_lname, c_phone, c_email, o_sub_total::text, o_tax::text, o_total::text, o_ship_type, o_status, cx_type, \
        b.addr_street1, b.addr_city, b.addr_zip, bc.co_name, s.addr_street1, s.addr_city, s.addr_zip, sc.co_name \
        FROM orders JOIN customer ON c_id = o_c_id JOIN cc_xacts ON cx_o_id = o_id \
        JOIN address b ON b.addr_id = o_bill_addr_id JOIN country bc ON bc.co_id = b.addr_co_id \
        JOIN address s ON s.addr_id = o_ship_addr_id JOIN country sc ON sc.co_id = s.addr_co_id WHERE o_id = $1";
    /// Order display: its lines.
    order_lines: "SELECT ol_id, ol_i_id, i_title, i_publisher, i_cost::text, ol_qty, ol_discount::text, ol_comments FROM order_line \
        JOIN item ON i_id = ol_i_id WHERE ol_o_id = $1 ORDER BY ol_id";
    /// Admin request.
    admin_item: "SELECT i_id, i_title, a_fname, a_lname, i_image, i_thumbnail, i_cost::text FROM item JOIN author ON a_id = i_a_id WHERE i_id = $1";
    /// Admin confirm: the change.
    change_item: "UPDATE item SET i_cost = CAST($2::text AS numeric), i_image = $3, i_thumbnail = $4, i_pub_date = CURRENT_DATE WHERE i_id = $1";
    /// Admin confirm: what those bought most who bought this, in the newest 10,000 orders.
    bought_with: "SELECT ol_i_id FROM orders JOIN order_line ON ol_o_id = o_id WHERE ol_i_id <> $1 AND o_c_id IN \
        (SELECT o_c_id FROM orders JOIN order_line ON ol_o_id = o_id WHERE o_id > (SELECT max(o_id) - 10000 FROM orders) AND ol_i_id = $1) \
        GROUP BY ol_i_id ORDER BY sum(ol_qty) DESC, ol_i_id LIMIT 5";
    /// Admin confirm: the related books.
    relate: "UPDATE item SET i_related1 = $2, i_related2 = $3, i_related3 = $4, i_related4 = $5, i_related5 = $6 WHERE i_id = $1";
    /// Customer transaction: a product.
    product: "SELECT i_id, i_title, (i_cost * 100)::bigint, i_stock FROM item WHERE i_id = $1";
    /// Joins: a book and its author.
    join_author: "SELECT i_id, i_title, a_lname FROM item JOIN author ON a_id = i_a_id WHERE i_id = $1";
    /// Joins: an order and its lines.
    join_lines: "SELECT o_id, o_total::text, ol_id, ol_i_id, ol_qty FROM orders JOIN order_line ON ol_o_id = o_id WHERE o_id = $1 ORDER BY ol_id";
    /// Joins: a customer by name, the address, the country.
    join_country: "SELECT c_id, c_lname, addr_city, co_name FROM customer JOIN address ON addr_id = c_addr_id JOIN country ON co_id = addr_co_id WHERE c_uname = $1";
    /// Joins: an order, its lines, their books.
    join_books: "SELECT o_id, o_total::text, ol_id, ol_qty, i_title FROM orders JOIN order_line ON ol_o_id = o_id JOIN item ON i_id = ol_i_id WHERE o_id = $1 ORDER BY ol_id";
    /// Updates without an index: another price.
    set_price: "UPDATE item SET i_cost = CAST($2::text AS numeric) WHERE i_id = $1";
}
