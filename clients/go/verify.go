package verify

import (
	"errors"
	"math"
	"net/http"
	"strconv"
	"time"
)

// HeaderNames are the names of headers that an operator can change. /meta shows them as headers. An empty name is Nuncio's.
type HeaderNames struct {
	Event     string `json:"event"`
	Delivery  string `json:"delivery"`
	Signature string `json:"signature"`
	Sequence  string `json:"sequence"`
	Account   string `json:"account"`
}

// Presets of names.
var (
	NuncioHeaders = HeaderNames{"Nuncio-Event", "Nuncio-Delivery", "Nuncio-Signature", "Nuncio-Sequence", "Nuncio-Account"}
	GitHubHeaders = HeaderNames{Event: "X-GitHub-Event", Delivery: "X-GitHub-Delivery", Signature: "X-Hub-Signature-256"}
	StripeHeaders = HeaderNames{Signature: "Stripe-Signature"}
)

// Options say how to verify.
type Options struct {
	// Secret is the subscription's (whsec_…).
	Secret string
	// Secrets are several, of which one must match: during a rotation, or of several subscriptions.
	Secrets []string
	// PublicKeys are for signature "ed25519".
	PublicKeys PublicKeys
	// Tolerance is how far the time of the signature may be from this machine's clock. Default: five minutes.
	Tolerance time.Duration
	// HeaderNames are those that the operator has changed.
	HeaderNames HeaderNames
}

// Delivery is a verified delivery. Signatures cover the body and, for standard and ed25519, ID and Timestamp, not the rest.
type Delivery struct {
	// ID is the same at every attempt. Handle each id once.
	ID string `json:"id"`
	// Kind is that of the event.
	Kind string `json:"kind"`
	// Sequence is 1, 2, 3 … for each subscription.
	Sequence int64 `json:"sequence"`
	// Timestamp is when the attempt was signed, as Unix time in seconds; nil for sha256, which does not say it.
	Timestamp *int64 `json:"timestamp"`
	// Account is the id of the account that the event belongs to; nil if it belongs to none.
	Account *string `json:"account"`
}

// Verify verifies a delivery. The body is the bytes of the request as they were sent. If the delivery is not verified, the error is
// an *Error.
func Verify(header http.Header, body []byte, options Options) (Delivery, error) {
	if options.Tolerance < 0 {
		return Delivery{}, errors.New("Tolerance must not be negative")
	}
	if body == nil {
		return Delivery{}, failure(NoBody, "There is no body. Pass the bytes of the request.")
	}
	names := options.HeaderNames.withDefaults()
	find := finderOf(header)
	s, err := readSignature(find, names, options.PublicKeys != nil)
	if err == nil && s.timestamp != nil {
		err = checkAge(*s.timestamp, options.Tolerance)
	}
	if err != nil {
		return Delivery{}, err
	}
	if s.format == formatEd25519 {
		err = checkPublicKeys(s, body, options.PublicKeys)
	} else {
		err = checkSecrets(s, body, options.secrets())
	}
	if err != nil {
		return Delivery{}, err
	}
	return readDelivery(find, names, s)
}

func readDelivery(find finder, names HeaderNames, s *signature) (Delivery, error) {
	kind, err := find.read(names.Event, isIdentifier)
	if err != nil {
		return Delivery{}, err
	}
	digits, err := find.read(names.Sequence, hasDigits(15))
	if err != nil {
		return Delivery{}, err
	}
	sequence, _ := strconv.ParseInt(digits, 10, 64)
	delivery := Delivery{ID: s.id, Kind: kind, Sequence: sequence, Timestamp: s.timestamp}
	if _, exists := find(names.Account); exists {
		account, err := find.read(names.Account, isIdentifier)
		if err != nil {
			return Delivery{}, err
		}
		delivery.Account = &account
	}
	return delivery, nil
}

func (options Options) secrets() []string {
	if options.Secret == "" {
		return options.Secrets
	}
	return append([]string{options.Secret}, options.Secrets...)
}

func (names HeaderNames) withDefaults() HeaderNames {
	chosen := func(name, other string) string {
		if name == "" {
			return other
		}
		return name
	}
	return HeaderNames{
		Event:     chosen(names.Event, NuncioHeaders.Event),
		Delivery:  chosen(names.Delivery, NuncioHeaders.Delivery),
		Signature: chosen(names.Signature, NuncioHeaders.Signature),
		Sequence:  chosen(names.Sequence, NuncioHeaders.Sequence),
		Account:   chosen(names.Account, NuncioHeaders.Account),
	}
}

func checkAge(timestamp int64, tolerance time.Duration) error {
	if tolerance == 0 {
		tolerance = 5 * time.Minute
	}
	// A duration has room for 292 years, and a timestamp for more.
	age := float64(time.Now().UnixMilli())/1_000 - float64(timestamp)
	if math.Abs(age) <= tolerance.Seconds() {
		return nil
	}
	code, words := TooOld, "ago"
	if age < 0 {
		code, words = TooNew, "in the future"
	}
	return failure(code, "The delivery was signed %.0f seconds %s, by this machine's clock.", math.Abs(age), words)
}
