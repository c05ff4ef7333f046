"""`kopt report`: a campaign as one HTML file that opens offline."""
