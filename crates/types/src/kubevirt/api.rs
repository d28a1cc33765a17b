//! How API structs are declared: one macro, so that every field is optional on the wire in the same way.
//!
//! Go's `omitempty` has no exact counterpart in serde. Here a field that has its type's default value is not
//! written, and a field that is missing or `null` becomes the default. What a user must give is marked `#[required]`,
//! which says so in the schema, where the API server checks it and names the field. Upstream writes such fields without
//! `omitempty`, so that what a controller read it can write again, empty devices and all; so it is here.

/// Whether a value equals its type's default, and so is left out of the JSON.
pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Declares API structs: camelCase, every field optional on the wire, a schema for the CRD. A field that is marked
/// `#[required]`, below its comment and above all else, is required by the schema and always written; one that is marked
/// `#[written]` in the same place is always written, as all of Go's structs are.
macro_rules! api {
    ($(
        $(#[$meta:meta])*
        pub struct $name:ident { $($fields:tt)* }
    )*) => {$(
        crate::kubevirt::api::fields! { [$(#[$meta])* pub struct $name] [] $($fields)* }
    )*};
}

/// One field after the other: the struct's head, the fields that are done, those that are not.
macro_rules! fields {
    ([$($head:tt)*] [$($done:tt)*]) => {
        #[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
        #[serde(rename_all = "camelCase", default)]
        $($head)* { $($done)* }
    };
    // One that can be missing has no value to write then; upstream's would be null, which no schema takes either.
    ([$($head:tt)*] [$($done:tt)*]
     $(#[doc = $doc:tt])* #[required] $(#[$meta:meta])* pub $field:ident: Option<$ty:ty>, $($rest:tt)*) => {
        crate::kubevirt::api::fields! { [$($head)*] [$($done)*
            $(#[doc = $doc])*
            $(#[$meta])*
            #[schemars(extend("x-required" = true))]
            #[serde(
                skip_serializing_if = "Option::is_none",
                deserialize_with = "crate::json::or_none"
            )]
            pub $field: Option<$ty>,
        ] $($rest)* }
    };
    ([$($head:tt)*] [$($done:tt)*]
     $(#[doc = $doc:tt])* #[required] $(#[$meta:meta])* pub $field:ident: $ty:ty, $($rest:tt)*) => {
        crate::kubevirt::api::fields! { [$($head)*] [$($done)*
            $(#[doc = $doc])*
            $(#[$meta])*
            #[schemars(extend("x-required" = true))]
            #[serde(deserialize_with = "crate::json::or_none")]
            pub $field: $ty,
        ] $($rest)* }
    };
    ([$($head:tt)*] [$($done:tt)*]
     $(#[doc = $doc:tt])* #[written] $(#[$meta:meta])* pub $field:ident: $ty:ty, $($rest:tt)*) => {
        crate::kubevirt::api::fields! { [$($head)*] [$($done)*
            $(#[doc = $doc])*
            $(#[$meta])*
            #[serde(deserialize_with = "crate::json::or_none")]
            pub $field: $ty,
        ] $($rest)* }
    };
    ([$($head:tt)*] [$($done:tt)*] $(#[$meta:meta])* pub $field:ident: $ty:ty, $($rest:tt)*) => {
        crate::kubevirt::api::fields! { [$($head)*] [$($done)*
            $(#[$meta])*
            #[serde(
                skip_serializing_if = "crate::kubevirt::api::is_default",
                deserialize_with = "crate::json::or_none"
            )]
            pub $field: $ty,
        ] $($rest)* }
    };
}

/// Makes a struct with `metadata` and other fields an API kind: `apiVersion` and `kind` are written, and the
/// traits of `k8s_openapi` by which generic code knows a kind are there. Fields before the semicolon are those that its
/// schema requires; they are always written.
macro_rules! kind {
    ($name:ident, $group:literal, $version:literal, $kind:literal, $plural:literal, $scope:ident,
     {$($required:ident: $required_key:literal),* $(; $($field:ident: $key:literal),*)?}) => {
        impl k8s_openapi::Resource for $name {
            const API_VERSION: &'static str = concat!($group, "/", $version);
            const GROUP: &'static str = $group;
            const KIND: &'static str = $kind;
            const VERSION: &'static str = $version;
            const URL_PATH_SEGMENT: &'static str = $plural;
            type Scope = k8s_openapi::$scope;
        }

        impl k8s_openapi::ListableResource for $name {
            const LIST_KIND: &'static str = concat!($kind, "List");
        }

        impl k8s_openapi::Metadata for $name {
            type Ty = k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
            fn metadata(&self) -> &Self::Ty {
                &self.metadata
            }
            fn metadata_mut(&mut self) -> &mut Self::Ty {
                &mut self.metadata
            }
        }

        $crate::json_here!($name);

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                use serde::ser::SerializeMap as _;
                let mut map = serializer.serialize_map(None)?;
                map.serialize_entry("apiVersion", <Self as k8s_openapi::Resource>::API_VERSION)?;
                map.serialize_entry("kind", <Self as k8s_openapi::Resource>::KIND)?;
                map.serialize_entry("metadata", &self.metadata)?;
                $(map.serialize_entry($required_key, &self.$required)?;)*
                $($(if !crate::kubevirt::api::is_default(&self.$field) {
                    map.serialize_entry($key, &self.$field)?;
                })*)?
                map.end()
            }
        }
    };
}

pub(crate) use {api, fields, kind};
