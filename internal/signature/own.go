package signature

import (
	"crypto/hmac"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"net/url"
	"sort"
	"strings"

	"github.com/tidwall/gjson"
)

// Here are the schemes that no template describes.

// twilio signs its form's parameters, sorted, behind the public URL; of a JSON body
// it signs a digest that stands in the URL.
// https://www.twilio.com/docs/usage/webhooks/webhooks-security
type twilio struct{ keys [][]byte }

// NewTwilio returns the verifier of Twilio's requests, by auth tokens.
func NewTwilio(tokens []string) (Verifier, error) {
	keys, err := textKeys(tokens)
	return &twilio{keys}, err
}

func textKeys(secrets []string) ([][]byte, error) {
	if len(secrets) == 0 {
		return nil, errors.New("no secret")
	}
	keys := make([][]byte, len(secrets))
	for i, secret := range secrets {
		if secret == "" {
			return nil, errors.New("a secret is empty")
		}
		keys[i] = []byte(secret)
	}
	return keys, nil
}

// Verify implements Verifier.
func (t *twilio) Verify(r Received) error {
	value, err := one(r.Header, "X-Twilio-Signature")
	if err != nil {
		return err
	}
	sum, err := base64.StdEncoding.DecodeString(value)
	if err != nil {
		return errors.New("the signature is not base64")
	}
	content := r.URL
	if strings.HasPrefix(r.Header.Get("Content-Type"), "application/x-www-form-urlencoded") {
		form, err := url.ParseQuery(string(r.Body))
		if err != nil {
			return errors.New("the form can't be decoded")
		}
		content += sortedForm(form)
	} else if err := bodyDigest(r); err != nil {
		return err
	}
	for _, key := range t.keys {
		mac := hmac.New(sha1.New, key)
		mac.Write([]byte(content))
		if hmac.Equal(mac.Sum(nil), sum) {
			return nil
		}
	}
	return errors.New("no signature is made by one of the secrets")
}

func sortedForm(form url.Values) string {
	names := make([]string, 0, len(form))
	for name := range form {
		names = append(names, name)
	}
	sort.Strings(names)
	var b strings.Builder
	for _, name := range names {
		values := append([]string(nil), form[name]...)
		sort.Strings(values)
		for i, value := range values {
			if i == 0 || value != values[i-1] {
				b.WriteString(name + value)
			}
		}
	}
	return b.String()
}

// bodyDigest holds the body against the digest in the signed URL.
func bodyDigest(r Received) error {
	u, err := url.Parse(r.URL)
	if err != nil {
		return errors.New("the URL can't be parsed")
	}
	want, err := hex.DecodeString(u.Query().Get("bodySHA256"))
	if err != nil || len(want) != sha256.Size {
		return errors.New("the URL has no bodySHA256")
	}
	if got := sha256.Sum256(r.Body); !hmac.Equal(got[:], want) {
		return errors.New("the body is not the one of bodySHA256")
	}
	return nil
}

// adyen signs eight fields of each item of a notification.
// https://docs.adyen.com/development-resources/webhooks/verify-hmac-signatures
type adyen struct{ keys [][]byte }

// NewAdyen returns the verifier of Adyen's payment notifications.
func NewAdyen(secrets []string) (Verifier, error) {
	keys, err := textKeys(secrets)
	for i, key := range keys {
		if keys[i], err = hex.DecodeString(string(key)); err != nil || len(keys[i]) == 0 {
			return nil, errors.New("a secret is not hex digits, which this scheme wants")
		}
	}
	return &adyen{keys}, err
}

// Verify implements Verifier: every item must be signed.
func (a *adyen) Verify(r Received) error {
	if err := unambiguous(r.Body); err != nil {
		return err
	}
	items := gjson.GetBytes(r.Body, "notificationItems").Array()
	if len(items) == 0 {
		return errors.New("the body has no notificationItems")
	}
	for _, wrapped := range items {
		item := wrapped.Get("NotificationRequestItem")
		sum, err := base64.StdEncoding.DecodeString(item.Get("additionalData.hmacSignature").String())
		if err != nil || len(sum) == 0 {
			return errors.New("an item has no signature")
		}
		if !a.signed(item, sum) {
			return errors.New("an item's signature is made by none of the secrets")
		}
	}
	return nil
}

func (a *adyen) signed(item gjson.Result, sum []byte) bool {
	fields := make([]string, 0, 8)
	for _, path := range []string{
		"pspReference", "originalReference", "merchantAccountCode", "merchantReference", "amount.value", "amount.currency", "eventCode", "success",
	} {
		fields = append(fields, item.Get(path).String())
	}
	content, matched := strings.Join(fields, ":"), false
	for _, key := range a.keys {
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(content))
		matched = hmac.Equal(mac.Sum(nil), sum) || matched
	}
	return matched
}

// bearer wants one of the tokens, as CloudEvents' senders carry them.
// https://github.com/cloudevents/spec/blob/main/cloudevents/http-webhook.md
type bearer struct{ token schemeVerifier }

// NewBearer returns the verifier of requests with a bearer token.
func NewBearer(tokens []string) (Verifier, error) {
	keys, err := textKeys(tokens)
	b := &bearer{}
	for _, key := range keys {
		b.token.keys = append(b.token.keys, verifyingKey{secret: key})
	}
	return b, err
}

// Verify implements Verifier.
func (b *bearer) Verify(r Received) error {
	value, err := one(r.Header, "Authorization")
	if err != nil {
		return err
	}
	scheme, token, _ := strings.Cut(value, " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return errors.New("the authorization is no bearer token")
	}
	return b.token.token(strings.TrimSpace(token))
}

// unambiguous refuses a body that is no JSON or has a key twice in one object. Where
// fields are signed, and not the bytes, the second would be taken for the signed one by
// whoever reads the last.
func unambiguous(body []byte) error {
	if !gjson.ValidBytes(body) {
		return errors.New("the body is not JSON")
	}
	return uniqueKeys(gjson.ParseBytes(body))
}

func uniqueKeys(value gjson.Result) (err error) {
	seen := make(map[string]bool)
	value.ForEach(func(key, item gjson.Result) bool {
		if value.IsObject() {
			name := key.String()
			if seen[name] {
				err = errors.New("the body has a key twice")
				return false
			}
			seen[name] = true
		}
		if item.IsObject() || item.IsArray() {
			err = uniqueKeys(item)
		}
		return err == nil
	})
	return err
}
