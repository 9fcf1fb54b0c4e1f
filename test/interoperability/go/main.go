// Drives golang.org/x/oauth2 and go-oidc with their defaults, as test/interoperability/clients.test.ts asks. It prints the
// authorization URL, reads the redirect from its input, and prints what it got as JSON.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"
)

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func main() {
	ctx := context.Background()
	issuer := os.Getenv("ISSUER")
	provider, err := oidc.NewProvider(ctx, issuer)
	must(err)
	config := oauth2.Config{
		ClientID:     os.Getenv("CLIENT_ID"),
		ClientSecret: os.Getenv("CLIENT_SECRET"),
		RedirectURL:  os.Getenv("REDIRECT_URI"),
		Endpoint:     provider.Endpoint(),
		Scopes:       []string{oidc.ScopeOpenID, "profile", "email", "read:posts"},
	}
	verifier := oauth2.GenerateVerifier()
	fmt.Println(config.AuthCodeURL("a-state", oidc.Nonce("a-nonce"), oauth2.S256ChallengeOption(verifier)))

	line, err := bufio.NewReader(os.Stdin).ReadString('\n')
	must(err)
	redirect, err := url.Parse(strings.TrimSpace(line))
	must(err)
	if redirect.Query().Get("state") != "a-state" {
		log.Fatal("another state")
	}
	token, err := config.Exchange(ctx, redirect.Query().Get("code"), oauth2.VerifierOption(verifier))
	must(err)
	raw, _ := token.Extra("id_token").(string)
	idToken, err := provider.Verifier(&oidc.Config{ClientID: config.ClientID}).Verify(ctx, raw)
	must(err)
	if idToken.Nonce != "a-nonce" {
		log.Fatal("another nonce")
	}
	info, err := provider.UserInfo(ctx, oauth2.StaticTokenSource(token))
	must(err)
	userinfo := map[string]any{}
	must(info.Claims(&userinfo))

	// An expired token is renewed by the library.
	old := *token
	old.Expiry = time.Now().Add(-time.Hour)
	source := config.TokenSource(ctx, &old)
	renewed, err := source.Token()
	must(err)
	response, err := oauth2.NewClient(ctx, source).Get(issuer + "/api")
	must(err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	must(err)
	if response.StatusCode != http.StatusOK {
		log.Fatal(response.Status, string(body))
	}
	must(json.NewEncoder(os.Stdout).Encode(map[string]any{
		"subject":  idToken.Subject,
		"userinfo": userinfo,
		"renewed":  renewed.AccessToken != token.AccessToken,
		"api":      json.RawMessage(body),
	}))
}
