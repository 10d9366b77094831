DROP TABLE repricings;
