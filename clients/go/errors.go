package verify

import "fmt"

// Code says why a delivery is not verified or handled.
type Code string

// The codes of errors. NoBody is for a body that is nil. A body that was parsed before, which other languages refuse with
// body-parsed, is excluded by the type.
const (
	// MissingHeader: a header of the delivery is missing.
	MissingHeader Code = "missing-header"
	// MalformedHeader: a header of the delivery does not have its form, occurs twice or is too long.
	MalformedHeader Code = "malformed-header"
	// TooOld: the delivery was signed longer ago than Tolerance allows.
	TooOld Code = "too-old"
	// TooNew: the delivery was signed in the future, by this machine's clock.
	TooNew Code = "too-new"
	// NoMatchingSecret: no secret has made the signature.
	NoMatchingSecret Code = "no-matching-secret"
	// UnknownKey: no public key matches the signature.
	UnknownKey Code = "unknown-key"
	// BodyTooLarge: the body has more than 1 MiB.
	BodyTooLarge Code = "body-too-large"
	// NoBody: there is no body.
	NoBody Code = "no-body"
	// NoSecret: the signature needs a secret, and none was given.
	NoSecret Code = "no-secret"
	// NoPublicKeys: the signature needs public keys, and none were given.
	NoPublicKeys Code = "no-public-keys"
	// MalformedSecret: a secret is empty, has white space around it or, for standard, is not whsec_ and base64.
	MalformedSecret Code = "malformed-secret"
	// MalformedPublicKey: a public key is not whpk_ and the base64 of 32 bytes.
	MalformedPublicKey Code = "malformed-public-key"
	// KeysUnavailable: the public keys could not be loaded.
	KeysUnavailable Code = "keys-unavailable"
	// Busy: another request handles the delivery, or another one of the same order, at this moment.
	Busy Code = "busy"
	// OutOfOrder: a later delivery was handled before.
	OutOfOrder Code = "out-of-order"
)

var statuses = map[Code]int{
	MissingHeader:      401,
	MalformedHeader:    401,
	TooOld:             401,
	TooNew:             401,
	NoMatchingSecret:   401,
	UnknownKey:         401,
	BodyTooLarge:       413,
	NoBody:             500,
	NoSecret:           500,
	NoPublicKeys:       500,
	MalformedSecret:    500,
	MalformedPublicKey: 500,
	KeysUnavailable:    503,
	Busy:               503,
	OutOfOrder:         409,
}

// Error is a delivery that is not verified, or cannot be handled now. Its message has no secret and no valid signature.
type Error struct {
	Code    Code
	Message string
	// Cause is the error of loading public keys, or nil.
	Cause error
}

func (e *Error) Error() string { return e.Message }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Cause }

// Status is the HTTP status of the response. The server sends the delivery again after all of them.
func (e *Error) Status() int { return statuses[e.Code] }

func failure(code Code, format string, words ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, words...)}
}
