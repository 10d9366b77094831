//! An operation: a handler with the path and the methods of its annotation.

use actix_web::Route;
use actix_web::http::Method;
use utoipa::openapi::HttpMethod;

/// A handler that is documented and served at the path of its `utoipa::path` annotation.
pub(crate) struct Operation {
    /// The path as the router reads it, such as `/models/{id:.+}`.
    pub(crate) path: String,
    methods: Vec<HttpMethod>,
    handler: fn() -> Route,
}

impl Operation {
    pub(super) fn new<Annotation: utoipa::Path>(handler: fn() -> Route) -> Self {
        Self { path: Annotation::path(), methods: Annotation::methods(), handler }
    }

    /// Its methods.
    pub(crate) fn methods(&self) -> Vec<Method> {
        self.methods.iter().map(actix_method).collect()
    }

    /// A route for each of its methods.
    pub(crate) fn routes(&self) -> impl Iterator<Item = Route> {
        self.methods.iter().map(|method| (self.handler)().method(actix_method(method)))
    }
}

fn actix_method(method: &HttpMethod) -> Method {
    match method {
        HttpMethod::Get => Method::GET,
        HttpMethod::Post => Method::POST,
        HttpMethod::Put => Method::PUT,
        HttpMethod::Delete => Method::DELETE,
        HttpMethod::Options => Method::OPTIONS,
        HttpMethod::Head => Method::HEAD,
        HttpMethod::Patch => Method::PATCH,
        HttpMethod::Trace => Method::TRACE,
    }
}

/// Makes a type that documents handlers by `utoipa::OpenApi`, and serves them by `operations()`. The document has what
/// follows the handlers, too.
macro_rules! operations {
    ($Documented:ident: $( $module:ident::$handler:ident ),*; $( $more:tt )*) => {
        #[derive(utoipa::OpenApi)]
        #[openapi(paths($( $module::$handler ),*), $( $more )*)]
        struct $Documented;

        impl $Documented {
            fn operations() -> Vec<Operation> {
                // The annotation of `handler` is the type `__path_handler`.
                pastey::paste! {
                    vec![ $( Operation::new::<$module::[<__path_ $handler>]>(
                        || actix_web::web::to($module::$handler),
                    ) ),* ]
                }
            }
        }
    };
}

pub(super) use operations;
