package verify

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
)

const bodyBytesMax = 1_048_576

type contextKey struct{}

// Handler verifies requests before they reach the next handler, which reads the body as usual and gets the delivery by DeliveryOf.
// A request that is not verified gets the error as its response.
func Handler(options Options, next http.Handler) http.Handler {
	return http.HandlerFunc(func(response http.ResponseWriter, request *http.Request) {
		delivery, body, err := read(request, options)
		if err != nil {
			Respond(response, err)
			return
		}
		request = request.WithContext(context.WithValue(request.Context(), contextKey{}, delivery))
		request.Body = io.NopCloser(bytes.NewReader(body))
		next.ServeHTTP(response, request)
	})
}

// HandlerFunc is Handler for a function that can fail. An *Error that it returns, such as of Once, becomes its response, and every
// other error a 500. Without an error the response is 204, unless the function has responded.
func HandlerFunc(options Options, handle func(response http.ResponseWriter, request *http.Request, delivery Delivery) error) http.Handler {
	return Handler(options, http.HandlerFunc(func(response http.ResponseWriter, request *http.Request) {
		writer := &watchedWriter{ResponseWriter: response}
		err := handle(writer, request, DeliveryOf(request))
		switch {
		case writer.hasResponded:
		case err != nil:
			Respond(response, err)
		default:
			response.WriteHeader(http.StatusNoContent)
		}
	}))
}

// DeliveryOf returns the delivery of a request that Handler has verified. It panics if no Handler has.
func DeliveryOf(request *http.Request) Delivery {
	delivery, isVerified := request.Context().Value(contextKey{}).(Delivery)
	if !isVerified {
		panic("the request was not verified: wrap its handler in verify.Handler")
	}
	return delivery
}

// Respond responds with the status of an error. The server shows the response in the delivery's log. Details of errors that are not
// an *Error stay here.
func Respond(response http.ResponseWriter, err error) {
	status, words := http.StatusInternalServerError, map[string]string{"error": "internal"}
	var known *Error
	if errors.As(err, &known) {
		status, words = known.Status(), map[string]string{"error": string(known.Code), "message": known.Message}
	}
	response.Header().Set("Content-Type", "application/json")
	response.WriteHeader(status)
	_ = json.NewEncoder(response).Encode(words)
}

// read reads a body to its end, so that the response arrives, but keeps none that is too large.
func read(request *http.Request, options Options) (Delivery, []byte, error) {
	body, err := io.ReadAll(io.LimitReader(request.Body, bodyBytesMax+1))
	if err == nil && len(body) > bodyBytesMax {
		_, err = io.Copy(io.Discard, request.Body)
		if err == nil {
			err = failure(BodyTooLarge, "The body has more than %d bytes.", bodyBytesMax)
		}
	}
	if err != nil {
		return Delivery{}, nil, err
	}
	delivery, err := Verify(request.Header, body, options)
	return delivery, body, err
}

type watchedWriter struct {
	http.ResponseWriter
	hasResponded bool
}

func (w *watchedWriter) WriteHeader(status int) {
	w.hasResponded = true
	w.ResponseWriter.WriteHeader(status)
}

func (w *watchedWriter) Write(text []byte) (int, error) {
	w.hasResponded = true
	return w.ResponseWriter.Write(text)
}

// Unwrap is for http.ResponseController.
func (w *watchedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
